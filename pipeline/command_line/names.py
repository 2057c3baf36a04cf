"""What is said of an unknown flag or key: our name of another program's, or the nearest."""

import difflib
from collections.abc import Iterable
from typing import Any

from pipeline.command_line.hints import find_hint, known_keys

# By our flag those of google-research/bert, NVIDIA's LDDL and run_pretraining.py, Hugging Face's
# run_mlm.py, run_glue.py and Trainer, and MosaicML's BERT, but for those that are near enough to be
# proposed. Of several the first there is counts.
_THEIRS = {
    "input": "input_file train_file predict_file test_file dataset_name wikipedia books",
    "data": "input_file input_dir dataset data_dir",
    "train": "train_file data_dir dataset_name",
    "validation": "validation_file predict_file",
    "test": "test_file",
    "output": "output_file output_dir sink save_folder out",
    "vocab": "vocab_file tokenizer_name",
    "seq_lens": "max_seq_length target_seq_length max_length max_seq_len",
    "phases.seq_len": "max_seq_length max_length max_seq_len",
    "seq_len": "max_seq_length max_length max_seq_len",
    "seed": "random_seed data_seed",
    "passes": "dupe_factor duplicate_factor",
    "masked_lm_prob": "masked_lm_ratio mlm_probability",
    "language": "wikipedia_lang",
    "workers": "local_n_workers preprocessing_num_workers num_proc",
    "validation_fraction": "validation_split_percentage",
    "model.preset": "bert_config_file config_file config_name",
    "init_from": "init_checkpoint model_name_or_path load_path",
    "model": "model_name_or_path init_checkpoint",
    "task": "task_name",
    "global_batch": "train_batch_size per_device_train_batch_size batch_size",
    "search_global_batch": "global_batch train_batch_size batch_size per_device_train_batch_size",
    "search_epochs": "epochs num_train_epochs",
    "search_peak_lr": "peak_lr learning_rate lr",
    "search_seeds": "seed seeds",
    "epochs": "num_train_epochs",
    "steps": "num_train_steps max_steps max_duration",
    "peak_lr": "learning_rate lr",
    "warmup_fraction": "warmup_proportion warmup_ratio",
    "optimizer.name": "optim",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.eps": "adam_epsilon",
    "checkpoint.interval": "save_checkpoints_steps num_steps_per_checkpoint save_steps save_interval",
    "checkpoint.keep": "save_total_limit save_num_checkpoints_to_keep",
    "validation.interval": "eval_steps eval_interval",
    "validation.num_instances": "max_eval_steps max_eval_samples",
    "precision": "fp16 bf16 amp dtype torch_dtype",
    "activation_checkpointing": "checkpoint_activations gradient_checkpointing",
    "compile": "torch_compile",
    "squad.stride": "doc_stride",
    "squad.max_query_pieces": "max_query_length",
    "squad.null_threshold": "null_score_diff_threshold",
    "replace_head": "ignore_mismatched_sizes",
    "micro_tokens": "batch_size eval_batch_size predict_batch_size per_device_eval_batch_size",
    "world_size": "gpus num_gpus",
}
SAME_HERE = {
    name: [ours for ours, theirs in _THEIRS.items() if name in theirs.split()]
    for name in " ".join(_THEIRS.values()).split()
}
"""A flag of another program, and those that do the same here."""

_NOT_NEEDED = {
    "gradient_accumulation_steps": "--micro_tokens bounds the memory of one rank",
    "resume_from_checkpoint": "the same command again continues",
    "do_train": "pretrain and finetune train and validate",
}

_NEAR = 0.75
"""The least likeness of a name that is proposed; --epochs and eps have 0.67."""


def answer_unknown(name: str, settings_class: Any, mark: str = "--", where: str = "") -> str:
    """The message about a name that no setting of a class has, after a mark.

    That is "--" on the command line, and in a file the levels above; `where` is its file and line.
    """
    level, dot, last = name.replace("-", "_").rpartition(".")
    for ours in SAME_HERE.get(last, []):
        if find_hint(settings_class, f"{level}{dot}{ours}") is not None:
            return f"{where}{mark}{name} is {mark}{level}{dot}{ours} here"
    if last in _NOT_NEEDED:
        return f"{where}{mark}{name} is not needed: {_NOT_NEEDED[last]}"
    kind, keys = ("flag" if mark.startswith("-") else "key"), known_keys(settings_class)
    if nearest := suggest(name, [*keys, *(["config"] if kind == "flag" else [])]):
        cure = f"did you mean {' or '.join(mark + each for each in nearest)}?"
    elif mark in ("", "-", "--"):
        cure = f"--help lists the {kind}s"
    else:
        cure = f"the keys there are {', '.join(keys)}"
    return f"{where}unknown {kind} {mark}{name}; {cure}"


def suggest(wrong: str, known: Iterable[str]) -> list[str]:
    """At most three names that may be meant: of that last part, that beginning, or that spelling."""
    wrong, names = wrong.lower().replace("-", "_"), list(known)
    by_last_part = {name.rpartition(".")[2]: name for name in reversed(names)}
    same = [name for name in names if wrong in (name.replace("-", "_"), name.rpartition(".")[2])]
    begun = [name for name in names if len(wrong) > 1 and name.startswith(wrong)]
    near = difflib.get_close_matches(wrong, names, cutoff=_NEAR)
    parts = difflib.get_close_matches(wrong, by_last_part, cutoff=_NEAR)
    return (same or begun or near or [by_last_part[part] for part in parts])[:3]
