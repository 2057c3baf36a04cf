"""Writes the message about an unknown flag or key, with the setting that is probably meant.

A setting is proposed if another program calls it by the unknown name, or if both are spelt alike.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pipeline.command_line.hints import known_keys

_SAME_HERE = {
    "adam_epsilon": "optimizer.eps",
    "attention_probs_dropout_prob": "model.overrides",
    "batch_size": "global_batch search_global_batch micro_tokens",
    "bert_config_file": "model.preset",
    "bf16": "precision",
    "budget_minutes": "budget_hours",
    "dataset_name": "data train input",
    "do_lower_case": "lower_case",
    "do_whole_word_mask": "whole_word_masking",
    "doc_stride": "squad.stride",
    "dropout_prob": "model.overrides dropout",
    "dupe_factor": "passes",
    "eval_file": "validation",
    "eval_steps": "validation.interval",
    "fp16": "precision",
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_accumulation_steps": "micro_tokens",
    "gradient_clipping": "optimizer.max_grad_norm",
    "hidden_size": "model.overrides",
    "init_checkpoint": "init_from model",
    "input_file": "data train input",
    "learning_rate": "peak_lr search_peak_lr",
    "lr": "peak_lr search_peak_lr",
    "lr_scheduler_type": "phases.decay_form",
    "max_predictions_per_seq": "max_predictions",
    "max_seq_length": "seq_lens seq_len phases.seq_len",
    "mlm_probability": "masking masked_lm_prob",
    "model_name_or_path": "init_from model",
    "num_attention_heads": "model.overrides",
    "num_gpus": "world_size",
    "num_hidden_layers": "model.overrides",
    "num_train_epochs": "epochs search_epochs",
    "num_workers": "workers",
    "optim": "optimizer.name",
    "predict_file": "test input",
    "report_to": "wandb",
    "save_steps": "checkpoint.interval",
    "save_total_limit": "checkpoint.keep",
    "seed": "search_seeds",
    "text_column": "text_field columns.text",
    "tokenizer_name": "vocab",
    "train_data": "data train input",
    "train_file": "data train input",
    "validation_file": "validation",
    "vocab_file": "vocab",
    "warmup_proportion": "warmup_fraction",
    "warmup_ratio": "warmup_fraction",
}
"""Setting of google-research/bert or of a Hugging Face program -> settings here that do the same.

Several settings are separated by blanks; a command has some of them.
"""

_LAUNCHER = "give it to deepspeed before --module, as in deepspeed --num_gpus 8 --module trainer"
_DEVICE = "a rank takes the GPU that deepspeed gives it; CUDA_VISIBLE_DEVICES= trains on the CPU"
_AGAIN = "the same command again goes on with its --output, and another --output begins anew"
_OF_BUILD = "it was decided when the data were built, by build's"
_ANSWERS = {
    **dict.fromkeys(
        (
            "num_gpus", "num_nodes", "nnodes", "nproc_per_node", "hostfile", "include", "exclude",
            "master_addr", "master_port", "launcher",
        ),
        _LAUNCHER,
    ),
    **dict.fromkeys(
        ("device", "no_cuda", "use_cpu", "use_tpu", "gpus", "cuda", "local_rank"), _DEVICE
    ),
    **dict.fromkeys(("resume", "resume_from_checkpoint", "overwrite_output_dir"), _AGAIN),
    **dict.fromkeys(("do_train", "do_eval", "do_predict"), "the command says what is done"),
    **dict.fromkeys(
        ("dataloader_num_workers", "num_workers"),
        "a thread of each rank reads ahead, and there is nothing to choose",
    ),
    "dupe_factor": f"{_OF_BUILD} --passes",
    "do_lower_case": f"{_OF_BUILD} --lower_case",
    "max_predictions_per_seq": f"{_OF_BUILD} --max_predictions",
    "short_seq_prob": f"{_OF_BUILD} --short_seq_prob",
    "vocab_file": f"{_OF_BUILD} --vocab",
    "tokenizer_name": f"{_OF_BUILD} --vocab",
    "logging_steps": "every step is a row of metrics.jsonl in --output",
    "plan": "`plan` is a command of its own, which takes the same flags",
    "world_size": f"plan takes --world_size; where you train, {_LAUNCHER}",
}  # fmt: skip
"""Setting of a launcher or of another program -> the advice, if no setting here does the same."""

_NEAR = 0.75
"""The least similarity, as difflib measures it, of a name that is proposed.

"epochs" and "eps", which must not be proposed for each other, have 0.67.
"""
_MISSPELT = 0.82
"""The least similarity of a name from which the unknown one differs by a slip of a letter.

If there are such names, less similar ones are not proposed.
"""


def answer_unknown(
    name: str,
    settings_class: Any,
    mark: str = "--",
    where: str = "",
    takers: Callable[[str], Sequence[str]] = lambda _: (),
) -> str:
    """Returns the message about a name that no setting of a class has.

    Args:
        name: The unknown name, without `mark`.
        settings_class: The class whose settings are proposed.
        mark: What precedes the name: "--" for a flag; for a key of a file, the outer sections with
            their dots, such as "model.", or an empty text.
        where: "FILE:LINE: " for a key of a file; otherwise an empty text.
        takers: A function that returns the names of the other commands that have a given flag.
    """
    is_flag = mark.startswith("-")
    kind = "flag" if is_flag else "key"
    keys = known_keys(settings_class)
    known = [*keys, *(["config"] if is_flag else [])]
    plain = name.lower().replace("-", "_")
    is_whole = mark in ("", "-", "--")

    nearest = _same(plain, known)
    if not nearest and is_whole and plain in _ANSWERS:
        return f"{where}unknown {kind} {mark}{name}; {_ANSWERS[plain]}"

    nearest = nearest or _similar(plain, known)
    if nearest:
        cure = f"did you mean {' or '.join(mark + key for key in nearest[:3])}?"
    elif mark == "--" and (taken := _taken_elsewhere(plain, takers)):
        cure = taken
    elif is_whole:
        cure = f"--help lists the {kind}s"
    else:
        cure = f"the keys there are {', '.join(keys)}"
    return f"{where}unknown {kind} {mark}{name}; {cure}"


def _taken_elsewhere(plain: str, takers: Callable[[str], Sequence[str]]) -> str:
    """Says which other commands have a flag that this command does not know: "build takes --vocab".

    The flag may also be one of another program, such as --vocab_file of google-research/bert. If a
    command has a flag with the same meaning, by the table `_SAME_HERE`, this flag is named.

    Args:
        plain: The unknown flag in lower case, without hyphens before it and with underscores in it.
        takers: A function that returns the names of the other commands that have a given flag.

    Returns:
        The clause, or an empty text if no command has such a flag.
    """
    for flag in (plain, *_SAME_HERE.get(plain, "").split()):
        if commands := takers(flag):
            return f"{' and '.join(commands)} {'takes' if len(commands) == 1 else 'take'} --{flag}"
    return ""


def suggest(wrong: str, known: Iterable[str]) -> list[str]:
    """Returns at most three known names that the user may have meant by an unknown one.

    They are names with the same meaning or, if there are none, names that are spelt alike.

    Args:
        wrong: The unknown name.
        known: All names that would be right.
    """
    plain = wrong.lower().replace("-", "_")
    names = list(known)
    return (_same(plain, names) or _similar(plain, names))[:3]


def _same(wrong: str, names: Sequence[str]) -> list[str]:
    """Returns the names that surely are meant by an unknown one. The list may be empty.

    These are the names of the first of the following groups that has any:

    1. Names whose last part is the unknown name, such as `schedule.lr` for `lr`.
    2. Names that begin with the unknown name.
    3. Names of settings that another program calls by the unknown name, or by a part of it, as the
       table `_SAME_HERE` says.

    Args:
        wrong: The unknown name in lower case, with underscores.
        names: All names that would be right.
    """
    same = [name for name in names if wrong in (name.replace("-", "_"), name.rpartition(".")[2])]
    begun = [name for name in names if name.replace("-", "_").startswith(wrong)]
    begun = sorted(begun, key=len) if len(wrong) > 1 else []
    contained = [here for foreign, here in _SAME_HERE.items() if _holds(wrong, foreign)]
    meant = _SAME_HERE.get(wrong, " ".join(contained)).split()
    return same or begun or [name for name in meant if name in names]


def _similar(wrong: str, names: Sequence[str]) -> list[str]:
    """Returns the names that are similar to an unknown one. The list may be empty.

    These are the names of the first of the following groups that has any:

    1. Names that differ by a slip of a letter.
    2. Names of which the last part is within the unknown name as whole words, or holds it. The
       longest parts are first.
    3. Names with a similar spelling.
    4. Names whose last part has a similar spelling.

    Args:
        wrong: The unknown name in lower case, with underscores.
        names: All names that would be right.
    """
    by_spelling = {name.replace("-", "_"): name for name in names}
    by_last_part = {name.rpartition(".")[2]: name for name in sorted(names, key=len, reverse=True)}

    close = difflib.get_close_matches(wrong, by_spelling, cutoff=_NEAR)
    near = [by_spelling[spelling] for spelling in close]
    slips = difflib.get_close_matches(wrong, close, cutoff=_MISSPELT)
    misspelt = [by_spelling[spelling] for spelling in slips]

    sharing = [part for part in by_last_part if _holds(wrong, part) or _holds(part, wrong)]
    sharing_words = [by_last_part[part] for part in sorted(sharing, key=len, reverse=True)]

    close_parts = difflib.get_close_matches(wrong, by_last_part, cutoff=_NEAR)
    near_in_last_part = [by_last_part[part] for part in close_parts]
    return misspelt or sharing_words or near or near_in_last_part


def _holds(name: str, part: str) -> bool:
    """Returns whether a name holds another one as whole words, as num_train_steps holds steps."""
    return re.search(rf"(^|_){re.escape(part)}(_|$)", name) is not None
