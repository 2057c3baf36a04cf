"""What is said of a flag or key that a command does not have: our name of another program's, or the nearest."""

import difflib
from collections.abc import Iterable
from typing import Any

from pipeline.command_line.hints import find_hint, known_keys

# Flags of google-research/bert, NVIDIA's LDDL and run_pretraining.py, Hugging Face's run_mlm.py,
# run_glue.py and Trainer, and MosaicML's BERT, by ours. Of several the first that a command has.
_THEIRS = {
    "input": (
        "input_file train_file predict_file test_file dataset_name dataset_config_name wikipedia"
        " books common_crawl"
    ),
    "data": "input_file input_dir dataset data_dir",
    "train": "train_file data_dir dataset_name",
    "validation": "validation_file predict_file",
    "test": "test_file",
    "output": "output_file output_dir sink save_folder out",
    "vocab": "vocab_file tokenizer_name",
    "lower_case": "do_lower_case",
    "whole_word_masking": "do_whole_word_mask",
    "seq_lens": "max_seq_length target_seq_length max_length max_seq_len",
    "phases.seq_len": "max_seq_length max_length max_seq_len",
    "seq_len": "max_seq_length max_length max_seq_len",
    "max_predictions": "max_predictions_per_seq",
    "seed": "random_seed data_seed",
    "passes": "dupe_factor duplicate_factor",
    "masked_lm_prob": "masked_lm_ratio mlm_probability",
    "language": "wikipedia_lang",
    "num_buckets": "num_blocks",
    "workers": "local_n_workers preprocessing_num_workers num_proc",
    "validation_fraction": "validation_split_percentage",
    "model.preset": "bert_config_file config_file config_name",
    "model.overrides": "config_overrides",
    "init_from": "init_checkpoint model_name_or_path load_path",
    "model": "model_name_or_path init_checkpoint",
    "task": "task_name",
    "global_batch": (
        "train_batch_size per_device_train_batch_size batch_size global_train_batch_size"
    ),
    "search_global_batch": "global_batch train_batch_size per_device_train_batch_size batch_size",
    "search_epochs": "epochs num_train_epochs",
    "search_peak_lr": "peak_lr learning_rate lr",
    "search_seeds": "seed seeds",
    "epochs": "num_train_epochs",
    "steps": "num_train_steps max_steps max_duration",
    "peak_lr": "learning_rate lr",
    "warmup_steps": "num_warmup_steps",
    "warmup_fraction": "warmup_proportion warmup_ratio",
    "phases.decay_power": "lr_scheduler_type",
    "optimizer.name": "optim",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.eps": "adam_epsilon",
    "optimizer.weight_decay": "weight_decay",
    "optimizer.max_grad_norm": "max_grad_norm",
    "checkpoint.interval": (
        "save_checkpoints_steps num_steps_per_checkpoint save_steps save_strategy save_interval"
    ),
    "checkpoint.keep": "save_total_limit save_num_checkpoints_to_keep",
    "validation.interval": "eval_steps eval_interval",
    "validation.num_instances": "max_eval_steps max_eval_samples",
    "precision": "fp16 bf16 amp dtype torch_dtype",
    "activation_checkpointing": "checkpoint_activations gradient_checkpointing",
    "compile": "torch_compile",
    "wandb": "report_to",
    "squad.stride": "doc_stride",
    "squad.max_query_pieces": "max_query_length",
    "squad.null_threshold": "null_score_diff_threshold",
    "replace_head": "ignore_mismatched_sizes",
    "micro_tokens": (
        "batch_size eval_batch_size predict_batch_size per_device_eval_batch_size"
        " device_eval_batch_size"
    ),
    "world_size": "gpus num_gpus",
}
SAME_HERE = {
    name: [ours for ours, theirs in _THEIRS.items() if name in theirs.split()]
    for theirs in _THEIRS.values()
    for name in theirs.split()
}
"""A flag of another program, and those that do the same here."""

_NO_COUNTERPART = {
    "is not needed: pretrain and finetune train and validate; predict writes predictions": (
        "do_train do_eval do_predict eval_strategy evaluation_strategy"
    ),
    "is not needed: --global_batch counts all ranks, and --micro_tokens bounds the memory of one": (
        "gradient_accumulation_steps device_train_microbatch_size allreduce_post_accumulation"
        " allreduce_post_accumulation_fp16"
    ),
    "is not needed: the phases of a --config file follow each other in one run": (
        "phase2 phase1_end_step"
    ),
    "is not needed: the same command again continues": (
        "resume_from_checkpoint autoresume resume resume_step steps_this_run overwrite_cache"
    ),
    "is not there: pretrain keeps its newest checkpoints, and finetune its best model": (
        "save_checkpoints_steps save_steps save_strategy load_best_model_at_end"
        " metric_for_best_model"
    ),
    "is not there: give another --output, or remove the folder yourself": "overwrite_output_dir",
    "is not needed: batches are packed, so they have no padding": (
        "bin_size pad_to_max_length group_by_length dataloader_drop_last"
    ),
    "is not there: every document is taken": "sample_ratio max_train_samples max_eval_samples",
    "is not needed: --format lines makes a document of each line": "line_by_line",
    "is not needed: text is read as a stream": "streaming",
    "is not needed: the masks are made when the dataset is built": (
        "masking mlm_prob mlm_probability"
    ),
    "is not needed: the dataset or the model decides it": (
        "max_predictions_per_seq vocab_file do_lower_case tokenizer_name bert_config_file"
        " config_name task_name doc_stride model_type remove_unused_columns"
    ),
    "is not needed: there is one tokenizer, which is quick": "use_fast_tokenizer",
    "is not needed: --reading.buffer_bytes bounds what is read ahead": "dataloader_num_workers",
    "is not needed: bf16 needs no loss scale": "loss_scale fp16_opt_level",
    "is not needed: --task squad2 has questions without an answer": "version_2_with_negative",
    "is not there: an answer has at most 30 pieces, and the best 20 are written": (
        "max_answer_length n_best_size"
    ),
    "is not there: weight decay is 0.01 in fine-tuning, as in the paper": "weight_decay",
    "is not there: the loss is the paper's, without smoothing": "label_smoothing_factor",
    "is not there: devices and ranks are those of the launcher (docs/launching.md)": (
        "use_tpu tpu_name tpu_zone gcp_project master num_tpu_cores iterations_per_loop local_rank"
        " gpus use_cpu no_cuda tf32 ddp_find_unused_parameters low_cpu_mem_usage"
        " use_one_hot_embeddings"
    ),
    "is not needed: every step is in OUTPUT/metrics.jsonl (docs/watching.md)": (
        "logging_dir logging_steps logging_strategy log_freq json_summary run_name disable_tqdm disable_progress_bar"
        " verbose_logging"
    ),
    "is not there: export writes a folder, which `hf upload` takes": ("push_to_hub hub_model_id"),
    "is not needed: HF_TOKEN, the Hub's own variable, is read": "token use_auth_token hub_token",
    "is not there: no code of a model runs": "trust_remote_code",
    "is not there: the newest revision is read; `hf download` fetches another to a folder": (
        "model_revision"
    ),
    "is not there: --validation_fraction is held out of the text": "validation_file",
}
NOT_NEEDED = {name: reason for reason, names in _NO_COUNTERPART.items() for name in names.split()}
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
