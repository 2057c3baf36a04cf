"""README.md of an exported model: what it is, what it was trained on and how that went, as far as the export knows.

It begins with the metadata of Hugging Face's model cards, and ends with a mark by which an export
knows its own card again.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainer.model.config import BertConfig
from trainer.model.flops import num_parameters
from trainer.model.task_heads import Head

CARD = "README.md"
_MARK = re.compile(rb"<!-- written by export: ([0-9a-f]{16}) -->\n\Z")
_PIPELINES = {
    "classification": "text-classification",
    "regression": "text-classification",
    "choice": "multiple-choice",
    "tokens": "token-classification",
    "span": "question-answering",
}
_USE = """```python
from transformers import {model}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = {model}.from_pretrained(FOLDER)
```"""
_USE_ONNX = """```python
import onnxruntime
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
session = onnxruntime.InferenceSession(FOLDER + "/model.onnx")
outputs = session.run(None, dict(tokenizer(["A text."], return_tensors="np")))
```"""
_MODELS = {
    "fill-mask": "AutoModelForMaskedLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "multiple-choice": "AutoModelForMultipleChoice",
    "question-answering": "AutoModelForQuestionAnswering",
}


def model_card(
    config: BertConfig,
    provenance: Mapping[str, Any],
    *,
    lower_case: bool,
    head: Head | None = None,
    is_onnx: bool = False,
) -> bytes:
    """The card of a model; what `provenance` does not say is left out.

    Args:
        config: Sizes of the model.
        provenance: As of `trainer.conversion.export.export_hf`; its key "training" is what
            `trainer.runs.training_facts` finds in a run.
        lower_case: Whether the model reads lower-cased text.
        head: Head of a fine-tuned model; None for a pretrained one.
        is_onnx: Whether the folder holds model.onnx in place of the weights.
    """
    pipeline = _PIPELINES[head.kind] if head else "fill-mask"
    metadata = {"library_name": "onnx" if is_onnx else "transformers"}
    metadata |= {"pipeline_tag": pipeline, "tags": "[bert]"}
    base = provenance.get("base_model", {})
    metadata |= {"base_model": base["name"]} if base else {}
    lines = ["---", *(f"{key}: {value}" for key, value in metadata.items()), "---", ""]
    # The pretraining heads are among these parameters, which a fine-tuned model lacks.
    size = "" if head else f" and {num_parameters(config) / 1e6:,.1f} M parameters"
    lines += [f"# BERT of {config.num_layers} layers{size}", ""]
    lines += _table(("model", ""), _describe_model(config, lower_case, head))
    lines += _describe_training(provenance)
    if base:
        lines += ["## Base model", "", *_table(("fact", ""), _describe_base(base))]
    lines += _describe_task(provenance.get("finetuned", {}))
    use = _USE_ONNX if is_onnx else _USE.format(model=_MODELS[pipeline])
    lines += ["## Use", "", use, ""]
    text = "\n".join(lines).encode()
    return text + f"<!-- written by export: {_digest(text)} -->\n".encode()


def is_unedited(card: bytes) -> bool:
    """Whether a README.md is one that an export wrote, and nobody changed since."""
    found = _MARK.search(card)
    return found is not None and found[1].decode() == _digest(card[: found.start()])


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _describe_model(
    config: BertConfig, lower_case: bool, head: Head | None
) -> Iterable[tuple[str, Any]]:
    yield "layers, width, heads", f"{config.num_layers}, {config.hidden_size}, {config.num_heads}"
    yield "longest input", f"{config.max_position_embeddings} tokens"
    yield (
        "vocabulary",
        f"{config.vocab_size:,} WordPiece tokens, {'lower-cased' if lower_case else 'cased'}",
    )
    if head:
        yield "head", head.kind + (f": {', '.join(head.labels[:20])}" if head.labels else "")


def _describe_training(provenance: Mapping[str, Any]) -> list[str]:
    training = provenance.get("training", {})
    known = {
        "objective": provenance.get("objective"),
        "steps": _count(provenance.get("steps")),
        "tokens seen": _count(provenance.get("tokens_seen")),
        "instances seen": _count(provenance.get("instances_seen")),
        **{key: training.get(key) for key in ("optimizer", "precision", "seed")},
        "hardware of the last start": training.get("hardware"),
        "software": training.get("software"),
    }
    facts = [(name, value) for name, value in known.items() if value not in (None, "")]
    facts += [
        (f"phase {number}", each) for number, each in enumerate(training.get("phases", []), 1)
    ]
    lines = ["## Pretraining", "", *_table(("fact", ""), facts)] if facts else []
    if datasets := provenance.get("datasets"):
        lines += ["## Data", "", *_describe_data(datasets)]
    if losses := provenance.get("losses"):
        lines += [
            "## Losses",
            "",
            *_table(("step", "training, nats", "validation MLM, nats"), losses),
        ]
    return lines


def _describe_data(datasets: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (
            each.get("name"),
            each.get("weight"),
            f"`{each.get('root_hash')}`",
            ", ".join(each.get("licences", ())) or "not stated",
        )
        for each in datasets
    ]
    return _table(("dataset", "weight", "root hash", "licences"), rows)


def _describe_base(base: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The model whose weights training began with, and the one that it began with itself."""
    yield "training began with", base["name"]
    yield "licence", base.get("licence") or "not stated"
    own = base.get("provenance", {})
    for key, name in (
        ("steps", "steps"),
        ("tokens_seen", "tokens seen"),
        ("objective", "objective"),
    ):
        if key in own:
            yield f"its {name}", _count(own[key]) or own[key]
    for each in own.get("datasets", ()):
        licences = ", ".join(each.get("licences", ())) or "licence not stated"
        yield "its data", f"{each.get('name')} ({licences})"
    if "base_model" in own:
        yield from _describe_base(own["base_model"])
    elif "base_model" in base:
        yield "its base model", base["base_model"]


def _describe_task(finetuned: Mapping[str, Any]) -> list[str]:
    if not finetuned:
        return []
    facts = [
        ("task", finetuned.get("task")),
        ("run", finetuned.get("run")),
        ("sequence length", finetuned.get("seq_len")),
    ]
    for file, metrics in finetuned.get("metrics", {}).items():
        facts += [
            (f"{name}, {file}", f"{value:.4f}")
            for name, value in metrics.items()
            if isinstance(value, float)
        ]
    return ["## Fine-tuning", "", *_table(("fact", ""), facts)]


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    shown = (
        ["" if cell is None else str(cell).replace("|", "\\|").replace("\n", " ") for cell in row]
        for row in rows
    )
    return [*("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *shown)), ""]
