"""Writes the model card, README.md, of an exported model.

The card ends with a mark, a comment that contains the hash of the text before it. A later export
replaces the card only if the hash is right, because nobody has then edited the card.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizer.word_rule import WordRule
from trainer.model.config import BertConfig, num_parameters
from trainer.model.task_heads import Head

CARD = "README.md"
_MARK = re.compile(rb"<!-- written by export: ([0-9a-f]{16}) -->\n\Z")
# By kind of head: the name of the task on the Hugging Face Hub, and the end of the class's name in
# transformers. "" is a model that is only pretrained.
_USES = {
    "": ("fill-mask", "MaskedLM"),
    "classification": ("text-classification", "SequenceClassification"),
    "regression": ("text-classification", "SequenceClassification"),
    "choice": ("multiple-choice", "MultipleChoice"),
    "tokens": ("token-classification", "TokenClassification"),
    "span": ("question-answering", "QuestionAnswering"),
}
_USE = """```python
from transformers import AutoModelFor{model}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = AutoModelFor{model}.from_pretrained(FOLDER)
```"""
_OF_DATA = ("dataset", "weight", "root hash", "licences")
_OF_PAIRS = ("pairs; chance is 50 %", "number", "accuracy", "standard error")

Rows = Iterator[tuple[Any, ...]]
"""Rows of a table: the name of a fact, and its value or, in a table of several columns, values.

`_section` leaves out the rows in which all values are None.
"""


def model_card(
    config: BertConfig,
    provenance: Mapping[str, Any],
    *,
    rule: WordRule,
    head: Head | None = None,
) -> bytes:
    """Returns the card of a model as Markdown. Facts that `provenance` lacks are left out.

    Args:
        config: The configuration of the model.
        provenance: What is known of the training, as in `OpenedModel.provenance`.
        rule: The rule by which text becomes words.
        head: The head of a fine-tuned model; None for a model that is only pretrained.
    """
    pipeline, model = _USES[head.kind if head else ""]
    metadata = {"library_name": "transformers", "pipeline_tag": pipeline, "tags": "[bert]"}
    base = provenance.get("base_model", {})
    if base:
        metadata["base_model"] = base["name"]
    lines = ["---", *(f"{key}: {value}" for key, value in metadata.items()), "---", ""]
    # num_parameters counts the pretraining heads, which a fine-tuned model lacks.
    size = "" if head else f" and {num_parameters(config) / 1e6:,.1f} M parameters"
    lines += [f"# BERT of {config.num_layers} layers{size}", ""]
    lines += _table(("model", ""), _describe_model(config, rule, head))
    lines += _section("Pretraining", ("fact", ""), _describe_training(provenance))
    lines += _section("Data", _OF_DATA, map(_describe_data, provenance.get("datasets", ())))
    lines += _section("Base model", ("fact", ""), _describe_base(base))
    if head is None:
        pairs = provenance.get("minimal_pairs", {})
        lines += _section("Minimal pairs", _OF_PAIRS, _describe_pairs(pairs))
    lines += _section("Fine-tuning", ("fact", ""), _describe_task(provenance.get("finetuned", {})))
    lines += ["## Use", "", _USE.format(model=model), ""]
    text = "\n".join(lines).encode()
    return text + f"<!-- written by export: {_digest(text)} -->\n".encode()


def is_unedited(card: bytes) -> bool:
    """Returns whether a README.md was written by an export and has not been edited since."""
    mark = _MARK.search(card)
    return mark is not None and mark[1].decode() == _digest(card[: mark.start()])


def _digest(text: bytes) -> str:
    """Returns 16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text).hexdigest()[:16]


def _describe_model(config: BertConfig, rule: WordRule, head: Head | None) -> Rows:
    """Yields the sizes of the model, its vocabulary and its head."""
    yield "layers, width, heads", f"{config.num_layers}, {config.hidden_size}, {config.num_heads}"
    yield "longest input", f"{config.max_position_embeddings} tokens"
    case = "lower-cased" if rule.lower_case else "cased"
    yield "vocabulary", f"{config.vocab_size:,} WordPiece tokens, {case}"
    if rule.keeps_words:
        yield "words", "as they stand between blanks"
    if head:
        yield "head", head.kind + (f": {', '.join(head.labels[:20])}" if head.labels else "")


def _describe_training(provenance: Mapping[str, Any]) -> Rows:
    """Yields how the model was pretrained, for how long, and with which hardware and software."""
    training = provenance.get("training", {})
    yield "objective", provenance.get("objective")
    kinds = [dataset.get("instances") for dataset in provenance.get("datasets", ())]
    yield "instances", " and ".join(dict.fromkeys(filter(None, kinds)))
    for key in ("steps", "tokens_seen", "instances_seen"):
        yield key.replace("_", " "), _count(provenance.get(key))
    for key in ("masking", "optimizer", "precision", "seed"):
        yield key, training.get(key)
    yield "hardware of the last start", training.get("hardware")
    yield "software", training.get("software")
    for number, phase in enumerate(training.get("phases", []), 1):
        yield f"phase {number}", phase
    trunk = provenance.get("trunk")
    if trunk:
        yield "went on from", f"{trunk['run']} at step {trunk['step']:,}"
    yield "mean of steps", ", ".join(map(str, provenance.get("mean_of_steps", ())))


def _describe_data(dataset: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the row of a dataset: its name, weight, root hash and licences."""
    licences = ", ".join(dataset.get("licences", ())) or "not stated"
    return dataset.get("name"), dataset.get("weight"), f"`{dataset.get('root_hash')}`", licences


def _describe_base(base: Mapping[str, Any]) -> Rows:
    """Yields the facts about the model whose weights training began with.

    The facts about the model with which the training of that model began follow, and so on.

    Args:
        base: The entry "base_model" of a provenance; empty if training began with random weights.
    """
    if not base:
        return
    yield "training began with", base["name"]
    yield "licence", base.get("licence") or "not stated"
    provenance = base.get("provenance", {})
    for key in ("steps", "tokens_seen", "objective"):
        yield f"its {key.replace('_', ' ')}", _count(provenance.get(key)) or provenance.get(key)
    for dataset in provenance.get("datasets", ()):
        licences = ", ".join(dataset.get("licences", ())) or "licence not stated"
        yield "its data", f"{dataset.get('name')} ({licences})"
    if "base_model" in provenance:
        yield from _describe_base(provenance["base_model"])
    else:
        yield "its base model", base.get("base_model")


def _describe_pairs(pairs: Mapping[str, Any]) -> Rows:
    """Yields the accuracy on all minimal pairs, the mean accuracy of the groups, and each of these.

    Args:
        pairs: The result of `trainer.runs.training_facts.pairs_facts`; empty if none were measured.
    """
    if not pairs:
        return
    error = _percent(pairs.get("standard_error"))
    accuracy = _percent(pairs.get("accuracy"))
    yield f"all of {pairs.get('file')}", _count(pairs.get("num_pairs")), accuracy, error
    groups = pairs.get("groups", {})
    if groups:
        error = _percent(pairs.get("standard_error_of_mean"))
        mean = _percent(pairs.get("mean_accuracy"))
        yield "**mean of the groups below**", f"{len(groups)} groups", mean, error
    for name, value in groups.items():
        yield name.replace("_", " "), None, _percent(value), None


def _percent(share: Any) -> str | None:
    """Returns a share as a percentage with one decimal; None for anything but a float."""
    return f"{100 * share:.1f} %" if isinstance(share, float) else None


def _describe_task(finetuned: Mapping[str, Any]) -> Rows:
    """Yields the task that a model was fine-tuned on, and its metrics on every file.

    Args:
        finetuned: The entry "finetuned" of a provenance; empty if the model was only pretrained.
    """
    for key, name in (("task", "task"), ("run", "run"), ("seq_len", "sequence length")):
        yield name, finetuned.get(key)
    for file, metrics in finetuned.get("metrics", {}).items():
        for name, value in metrics.items():
            yield f"{name}, {file}", f"{value:.4f}" if isinstance(value, float) else None


def _count(value: Any) -> str | None:
    """Returns a whole number with separators of thousands; None for anything else."""
    return f"{value:,}" if isinstance(value, int) else None


def _section(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Returns the lines of a section that consists of a table; no lines if no row has a value.

    Args:
        title: The title of the section.
        head: The names of the columns.
        rows: The rows. A row without a value after its first cell is left out.
    """
    filled = [row for row in rows if any(cell not in (None, "") for cell in row[1:])]
    return [f"## {title}", "", *_table(head, filled)] if filled else []


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Returns the lines of a table in Markdown, followed by an empty line.

    Args:
        head: The names of the columns.
        rows: The rows. None is shown as an empty cell.
    """
    shown = (
        ["" if cell is None else str(cell).replace("|", "\\|").replace("\n", " ") for cell in row]
        for row in rows
    )
    return [*("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *shown)), ""]
