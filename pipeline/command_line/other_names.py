"""Names that a flag had, and those that other programs have for it: refused, with what does it here."""

OLD_NAMES = {
    "batch_size": "global_batch",
    "count": "num_instances",
    "dataset": "data",
    "doc_stride": "stride",
    "dropout": "hidden_dropout",
    "field": "text_field",
    "format": "output_format",
    "gpus": "world_size",
    "html": "output",
    "input_format": "format",
    "learning_rate": "peak_lr",
    "max_instances": "num_instances",
    "max_length": "seq_len",
    "max_seq_len": "seq_len",
}
"""A name that a flag or key had, and the one that means the same in every command."""

_DATASET_DECIDES = "is not needed: the dataset decides it"
_RANKS_DECIDE = (
    "is not needed: --global_batch counts all ranks, and --micro_tokens bounds the memory of one"
)
_CONTINUES = "is not needed: the same command again continues"
_MASKS_ARE_BUILT = "is not needed: the masks are made when the dataset is built"
OTHER_PROGRAMS = {
    # google-research/bert: create_pretraining_data.py and run_pretraining.py
    "input_file": "input data",
    "output_file": "output",
    "vocab_file": "vocab",
    "do_lower_case": "lower_case",
    "do_whole_word_mask": "whole_word_masking",
    "max_seq_length": "seq_lens phases.seq_len seq_len",
    "max_predictions_per_seq": "max_predictions",
    "random_seed": "seed",
    "dupe_factor": "passes",
    "bert_config_file": "model.preset",
    "output_dir": "output",
    "init_checkpoint": "init_from",
    "train_batch_size": "global_batch",
    "num_train_steps": "steps",
    "num_warmup_steps": "warmup_steps",
    "save_checkpoints_steps": "checkpoint.interval",
    "max_eval_steps": "validation.num_instances",
    # NVIDIA's run_pretraining.py and LDDL
    "input_dir": "data",
    "config_file": "model.preset",
    "max_steps": "steps",
    "warmup_proportion": "warmup_fraction",
    "num_steps_per_checkpoint": "checkpoint.interval",
    "checkpoint_activations": "activation_checkpointing",
    "fp16": "precision",
    "wikipedia": "input",
    "books": "input",
    "common_crawl": "input",
    "sink": "output",
    "wikipedia_lang": "language",
    "target_seq_length": "seq_lens",
    "duplicate_factor": "passes",
    "masked_lm_ratio": "masked_lm_prob",
    "num_blocks": "num_buckets",
    "local_n_workers": "workers",
    # Hugging Face's run_mlm.py and Trainer
    "dataset_name": "input",
    "train_file": "input train",
    "validation_file": "validation",
    "validation_split_percentage": "validation_fraction",
    "tokenizer_name": "vocab",
    "mlm_probability": "masked_lm_prob",
    "preprocessing_num_workers": "workers",
    "model_name_or_path": "init_from model",
    "config_name": "model.preset",
    "config_overrides": "model.overrides",
    "per_device_train_batch_size": "global_batch",
    "num_train_epochs": "steps epochs",
    "adam_epsilon": "optimizer.eps",
    "warmup_ratio": "warmup_fraction",
    "save_steps": "checkpoint.interval",
    "save_total_limit": "checkpoint.keep",
    "eval_steps": "validation.interval",
    "bf16": "precision",
    "gradient_checkpointing": "activation_checkpointing",
    "torch_compile": "compile",
    "report_to": "wandb",
    # MosaicML's BERT, whose settings are a YAML file
    "max_duration": "steps",
    "global_train_batch_size": "global_batch",
    "save_folder": "output",
    "save_interval": "checkpoint.interval",
    "save_num_checkpoints_to_keep": "checkpoint.keep",
    "eval_interval": "validation.interval",
    "load_path": "init_from",
}
"""A flag of another program, and those that do the same here: the first one that the command has."""

NOT_NEEDED = {
    "do_train": "is not needed: pretrain trains, and validates too",
    "do_eval": "is not needed: pretrain validates every --validation.interval steps",
    "gradient_accumulation_steps": _RANKS_DECIDE,
    "device_train_microbatch_size": _RANKS_DECIDE,
    "allreduce_post_accumulation": _RANKS_DECIDE,
    "phase2": "is not needed: the phases of a --config file follow each other in one run",
    "resume_from_checkpoint": _CONTINUES,
    "autoresume": _CONTINUES,
    "overwrite_output_dir": "is not there: give another --output, or remove the folder yourself",
    "bin_size": "is not needed: batches are packed, so they have no padding",
    "sample_ratio": "is not there: every document is taken",
    "line_by_line": "is not there: an instance is a pair of segments of documents",
    "pad_to_max_length": "is not needed: batches are packed, so they have no padding",
    **dict.fromkeys(("masking", "mlm_prob", "mlm_probability"), _MASKS_ARE_BUILT),
    **dict.fromkeys(
        ("max_predictions_per_seq", "vocab_file", "do_lower_case", "tokenizer_name"),
        _DATASET_DECIDES,
    ),
    "dataloader_num_workers": "is not needed: --reading.buffer_bytes bounds what is read ahead",
}
"""A flag of another program that has no counterpart in a command, and why."""
