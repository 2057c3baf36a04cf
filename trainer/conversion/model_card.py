"""README.md of an exported model, which ends with a mark by which an export knows it again."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizer.word_rule import WordRule
from trainer.model.config import BertConfig, num_parameters
from trainer.model.task_heads import Head

CARD = "README.md"
_MARK = re.compile(rb"<!-- written by export: ([0-9a-f]{16}) -->\n\Z")
_USES = {  # the task of Hugging Face's hub, and transformers' class
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

Rows = Iterator[tuple[Any, ...]]


def model_card(
    config: BertConfig,
    provenance: Mapping[str, Any],
    *,
    rule: WordRule,
    head: Head | None = None,
) -> bytes:
    """The card of a model; what `provenance` does not say is left out."""
    pipeline, model = _USES[head.kind if head else ""]
    metadata = {"library_name": "transformers"}
    metadata |= {"pipeline_tag": pipeline, "tags": "[bert]"}
    base = provenance.get("base_model", {})
    metadata |= {"base_model": base["name"]} if base else {}
    lines = ["---", *(f"{key}: {value}" for key, value in metadata.items()), "---", ""]
    # The pretraining heads are among these parameters, which a fine-tuned model lacks.
    size = "" if head else f" and {num_parameters(config) / 1e6:,.1f} M parameters"
    lines += [f"# BERT of {config.num_layers} layers{size}", ""]
    lines += _table(("model", ""), _describe_model(config, rule, head))
    lines += _section("Pretraining", ("fact", ""), _describe_training(provenance))
    lines += _section("Data", _OF_DATA, map(_describe_data, provenance.get("datasets", ())))
    lines += _section("Base model", ("fact", ""), _describe_base(base))
    lines += _section("Fine-tuning", ("fact", ""), _describe_task(provenance.get("finetuned", {})))
    lines += ["## Use", "", _USE.format(model=model), ""]
    text = "\n".join(lines).encode()
    return text + f"<!-- written by export: {_digest(text)} -->\n".encode()


def is_unedited(card: bytes) -> bool:
    """Whether a README.md is one that an export wrote, and nobody changed since."""
    found = _MARK.search(card)
    return found is not None and found[1].decode() == _digest(card[: found.start()])


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _describe_model(config: BertConfig, rule: WordRule, head: Head | None) -> Rows:
    yield "layers, width, heads", f"{config.num_layers}, {config.hidden_size}, {config.num_heads}"
    yield "longest input", f"{config.max_position_embeddings} tokens"
    case = "lower-cased" if rule.lower_case else "cased"
    yield "vocabulary", f"{config.vocab_size:,} WordPiece tokens, {case}"
    if rule.keeps_words:
        yield "words", "as they stand between blanks"
    if head:
        yield "head", head.kind + (f": {', '.join(head.labels[:20])}" if head.labels else "")


def _describe_training(provenance: Mapping[str, Any]) -> Rows:
    training = provenance.get("training", {})
    yield "objective", provenance.get("objective")
    for key in ("steps", "tokens_seen", "instances_seen"):
        yield key.replace("_", " "), _count(provenance.get(key))
    for key in ("masking", "optimizer", "precision", "seed"):
        yield key, training.get(key)
    yield "hardware of the last start", training.get("hardware")
    yield "software", training.get("software")
    for number, phase in enumerate(training.get("phases", []), 1):
        yield f"phase {number}", phase
    if trunk := provenance.get("trunk"):
        yield "went on from", f"{trunk['run']} at step {trunk['step']:,}"
    yield "mean of steps", ", ".join(map(str, provenance.get("mean_of_steps", ())))


def _describe_data(dataset: Mapping[str, Any]) -> tuple[Any, ...]:
    licences = ", ".join(dataset.get("licences", ())) or "not stated"
    return dataset.get("name"), dataset.get("weight"), f"`{dataset.get('root_hash')}`", licences


def _describe_base(base: Mapping[str, Any]) -> Rows:
    """The model whose weights training began with, and the one that it began with itself."""
    if not base:
        return
    yield "training began with", base["name"]
    yield "licence", base.get("licence") or "not stated"
    own = base.get("provenance", {})
    for key in ("steps", "tokens_seen", "objective"):
        yield f"its {key.replace('_', ' ')}", _count(own.get(key)) or own.get(key)
    for each in own.get("datasets", ()):
        licences = ", ".join(each.get("licences", ())) or "licence not stated"
        yield "its data", f"{each.get('name')} ({licences})"
    if "base_model" in own:
        yield from _describe_base(own["base_model"])
    else:
        yield "its base model", base.get("base_model")


def _describe_task(finetuned: Mapping[str, Any]) -> Rows:
    for key, name in (("task", "task"), ("run", "run"), ("seq_len", "sequence length")):
        yield name, finetuned.get(key)
    for file, metrics in finetuned.get("metrics", {}).items():
        for name, value in metrics.items():
            yield f"{name}, {file}", f"{value:.4f}" if isinstance(value, float) else None


def _count(value: Any) -> str | None:
    return f"{value:,}" if isinstance(value, int) else None


def _section(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A table under its title, of the rows that say something; nothing without any."""
    found = [row for row in rows if any(cell not in (None, "") for cell in row[1:])]
    return [f"## {title}", "", *_table(head, found)] if found else []


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    shown = (
        ["" if cell is None else str(cell).replace("|", "\\|").replace("\n", " ") for cell in row]
        for row in rows
    )
    return [*("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *shown)), ""]
