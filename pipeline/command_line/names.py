"""What is said of a flag or key that a command does not have: our name of another program's, or the nearest."""

import difflib
from collections.abc import Iterable
from typing import Any

from pipeline.command_line.hints import find_hint, known_keys

# Flags of google-research/bert, NVIDIA's LDDL and run_pretraining.py, Hugging Face's run_mlm.py,
# run_glue.py and Trainer, and MosaicML's BERT, by ours. Of several the first that a command has.
_THEIRS = {
    "input": "input_file train_file dataset_name wikipedia books common_crawl",
    "data": "input_file input_dir dataset data_dir",
    "train": "train_file",
    "validation": "validation_file",
    "output": "output_file output_dir sink save_folder out",
    "vocab": "vocab_file tokenizer_name",
    "lower_case": "do_lower_case",
    "whole_word_masking": "do_whole_word_mask",
    "seq_lens": "max_seq_length target_seq_length max_length max_seq_len",
    "phases.seq_len": "max_seq_length max_length max_seq_len",
    "seq_len": "max_seq_length max_length max_seq_len",
    "max_predictions": "max_predictions_per_seq",
    "seed": "random_seed",
    "passes": "dupe_factor duplicate_factor",
    "masked_lm_prob": "masked_lm_ratio mlm_probability",
    "language": "wikipedia_lang",
    "num_buckets": "num_blocks",
    "workers": "local_n_workers preprocessing_num_workers num_proc",
    "validation_fraction": "validation_split_percentage",
    "model.preset": "bert_config_file config_file config_name",
    "model.overrides": "config_overrides",
    "init_from": "init_checkpoint model_name_or_path load_path",
    "model": "model_name_or_path",
    "global_batch": (
        "train_batch_size per_device_train_batch_size batch_size global_train_batch_size"
    ),
    "search_global_batch": "global_batch train_batch_size per_device_train_batch_size batch_size",
    "search_epochs": "epochs num_train_epochs",
    "search_peak_lr": "peak_lr learning_rate lr",
    "search_seeds": "seed seeds",
    "steps": "num_train_steps max_steps num_train_epochs max_duration",
    "peak_lr": "learning_rate lr",
    "warmup_steps": "num_warmup_steps",
    "warmup_fraction": "warmup_proportion warmup_ratio",
    "optimizer.eps": "adam_epsilon",
    "checkpoint.interval": (
        "save_checkpoints_steps num_steps_per_checkpoint save_steps save_interval"
    ),
    "checkpoint.keep": "save_total_limit save_num_checkpoints_to_keep",
    "validation.interval": "eval_steps eval_interval",
    "validation.num_instances": "max_eval_steps",
    "precision": "fp16 bf16",
    "activation_checkpointing": "checkpoint_activations gradient_checkpointing",
    "compile": "torch_compile",
    "wandb": "report_to",
    "squad.stride": "doc_stride",
    "world_size": "gpus num_gpus",
}
SAME_HERE = {
    name: [ours for ours, theirs in _THEIRS.items() if name in theirs.split()]
    for theirs in _THEIRS.values()
    for name in theirs.split()
}
"""A flag of another program, and those that do the same here."""

_DATASET_DECIDES = "is not needed: the dataset decides it"
_RANKS_DECIDE = (
    "is not needed: --global_batch counts all ranks, and --micro_tokens bounds the memory of one"
)
_PACKED = "is not needed: batches are packed, so they have no padding"
_CONTINUES = "is not needed: the same command again continues"
_MASKS_ARE_BUILT = "is not needed: the masks are made when the dataset is built"
NOT_NEEDED = {
    "do_train": "is not needed: pretrain trains, and validates too",
    "do_eval": "is not needed: pretrain validates every --validation.interval steps",
    "gradient_accumulation_steps": _RANKS_DECIDE,
    "device_train_microbatch_size": _RANKS_DECIDE,
    "allreduce_post_accumulation": _RANKS_DECIDE,
    "phase2": "is not needed: the phases of a --config file follow each other in one run",
    "resume_from_checkpoint": _CONTINUES,
    "autoresume": _CONTINUES,
    "resume": _CONTINUES,
    "overwrite_output_dir": "is not there: give another --output, or remove the folder yourself",
    "bin_size": _PACKED,
    "pad_to_max_length": _PACKED,
    "sample_ratio": "is not there: every document is taken",
    "line_by_line": "is not there: an instance is a pair of segments of documents",
    "masking": _MASKS_ARE_BUILT,
    "mlm_prob": _MASKS_ARE_BUILT,
    "mlm_probability": _MASKS_ARE_BUILT,
    "max_predictions_per_seq": _DATASET_DECIDES,
    "vocab_file": _DATASET_DECIDES,
    "do_lower_case": _DATASET_DECIDES,
    "tokenizer_name": _DATASET_DECIDES,
    "dataloader_num_workers": "is not needed: --reading.buffer_bytes bounds what is read ahead",
}
"""A flag of another program that has no counterpart in a command, and why."""

_NEAR = 0.75
"""The least likeness of a name that is proposed; --epochs and eps have 0.67."""


def answer_unknown(name: str, settings_class: Any, mark: str = "--", where: str = "") -> str:
    """The message about a name that no setting has.

    Args:
        name: The flag or key.
        settings_class: The class that lacks it.
        mark: What stands before a name: "--" on the command line, the levels above in a file.
        where: File and line of a key.
    """
    level, dot, last = name.replace("-", "_").rpartition(".")
    for ours in SAME_HERE.get(last, []):
        if find_hint(settings_class, f"{level}{dot}{ours}") is not None:
            return f"{where}{mark}{name} is {mark}{level}{dot}{ours} here"
    if last in NOT_NEEDED:
        return f"{where}{mark}{name} {NOT_NEEDED[last]}"
    kind, keys = ("flag" if mark.startswith("-") else "key"), known_keys(settings_class)
    if nearest := suggest(name, [*keys, *(["config"] if kind == "flag" else [])]):
        cure = f"did you mean {' or '.join(mark + each for each in nearest)}?"
    elif mark in ("", "-", "--"):
        cure = f"--help lists the {kind}s"
    else:
        cure = f"the keys there are {', '.join(keys)}"
    return f"{where}unknown {kind} {mark}{name}; {cure}"


def suggest(wrong: str, known: Iterable[str]) -> list[str]:
    """At most three names that may be meant: of that last part, with that beginning, or spelled nearly so."""
    wrong, names = wrong.lower().replace("-", "_"), list(known)
    same = [name for name in names if wrong in (name.replace("-", "_"), name.rpartition(".")[2])]
    begun = [name for name in names if len(wrong) > 1 and name.startswith(wrong)]
    near = difflib.get_close_matches(wrong, names, cutoff=_NEAR)
    by_last_part = {name.rpartition(".")[2]: name for name in reversed(names)}
    parts = difflib.get_close_matches(wrong, by_last_part, cutoff=_NEAR)
    nearly = [by_last_part[part] for part in parts]
    return next((found for found in (same, begun, near, nearly) if found), [])[:3]
