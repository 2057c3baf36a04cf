"""What is said of an unknown flag or key: the nearest, by meaning or by spelling."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

from pipeline.command_line.hints import known_keys

_SAME_HERE = {
    "batch_size": "global_batch search_global_batch micro_tokens",
    "bert_config_file": "model.preset",
    "doc_stride": "squad.stride",
    "dupe_factor": "passes",
    "fp16": "precision",
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_accumulation_steps": "micro_tokens",
    "init_checkpoint": "init_from model",
    "learning_rate": "peak_lr search_peak_lr",
    "lr": "peak_lr search_peak_lr",
    "max_seq_length": "seq_lens seq_len phases.seq_len",
    "mlm_probability": "masking masked_lm_prob",
    "model_name_or_path": "init_from model",
    "num_gpus": "world_size",
    "num_train_epochs": "epochs search_epochs",
    "save_steps": "checkpoint.interval",
    "seed": "search_seeds",
}
"""By names that google-research/bert and Hugging Face's programs have, ours that do the same."""

_NEAR, _MISSPELT = 0.75, 0.82
"""The least likeness of a name that is proposed, --epochs and eps have 0.67; and of one letter."""


def answer_unknown(name: str, settings_class: Any, mark: str = "--", where: str = "") -> str:
    """The message about a name that no setting of a class has, after a mark.

    That is "--" on the command line, and in a file the levels above; `where` is its file and line.
    """
    kind, keys = ("flag" if mark.startswith("-") else "key"), known_keys(settings_class)
    if nearest := suggest(name, [*keys, *(["config"] if kind == "flag" else [])]):
        cure = f"did you mean {' or '.join(mark + each for each in nearest)}?"
    elif mark in ("", "-", "--"):
        cure = f"--help lists the {kind}s"
    else:
        cure = f"the keys there are {', '.join(keys)}"
    return f"{where}unknown {kind} {mark}{name}; {cure}"


def suggest(wrong: str, known: Iterable[str]) -> list[str]:
    """At most three names that may be meant: of that last part, beginning, meaning, or spelling."""
    wrong, names = wrong.lower().replace("-", "_"), list(known)
    by_last_part = {name.rpartition(".")[2]: name for name in sorted(names, key=len, reverse=True)}
    same = [name for name in names if wrong in (name.replace("-", "_"), name.rpartition(".")[2])]
    begun = [name for name in names if len(wrong) > 1 and name.startswith(wrong)]
    meant = [ours for theirs, ours in _SAME_HERE.items() if _holds(wrong, theirs)]
    ours = [name for name in " ".join(meant).split() if name in names]
    near = difflib.get_close_matches(wrong, names, cutoff=_NEAR)
    misspelt = difflib.get_close_matches(wrong, near, cutoff=_MISSPELT)
    held = [each for each in by_last_part if _holds(wrong, each) or _holds(each, wrong)]
    longest = [by_last_part[part] for part in sorted(held, key=len, reverse=True)]
    parts = difflib.get_close_matches(wrong, by_last_part, cutoff=_NEAR)
    of_parts = [by_last_part[part] for part in parts]
    return (same or begun or ours or misspelt or longest or near or of_parts)[:3]


def _holds(name: str, part: str) -> bool:
    """Whether a name has another among its words, as num_train_steps has steps."""
    return re.search(rf"(^|_){re.escape(part)}(_|$)", name) is not None
