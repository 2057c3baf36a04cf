"""README.md of a dataset: what it holds and of which sources and licences, as the Hugging Face Hub shows it.

It begins with the Hub's metadata, and ends with a mark by which a build knows its own card again: one
that somebody edited stays as it is.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from pipeline.shards.dataset import Dataset

CARD = "README.md"
NOT_STATED = "not stated"
_MARK = re.compile(rb"<!-- written by build: ([0-9a-f]{16}) -->\n\Z")
_LICENCES = {
    "apache-2.0", "mit", "odbl", "odc-by", "pddl", "gfdl", "cc0-1.0", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0",
    "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0",
}  # fmt: skip
"""The Hub's names of licences that text often has; any other is `other` there, and a card's table has its text."""
_SIZES = ((10**3, "1K"), (10**4, "10K"), (10**5, "100K"), (10**6, "1M"), (10**7, "10M"), (10**8, "100M"),
          (10**9, "1B"), (10**10, "10B"), (10**11, "100B"), (10**12, "1T"))  # fmt: skip
_USE = """## Use

```bash
hf download OWNER/NAME --repo-type dataset --local-dir data
python -m trainer pretrain --config configs/pretrain/bert-base.yaml --data data --output run
```

The shards are tar files of Arrow blocks, which `webdataset` iterates too. `manifest.json` has every
setting and count, and `report.html` shows them.
"""


def write_card(dataset: Dataset, report: Mapping[str, Any]) -> None:
    """Writes README.md beside the manifest, unless there is one that no build wrote or that was edited."""
    if not dataset.folder.exists(CARD) or is_unedited(dataset.folder.read(CARD)):
        dataset.folder.write(CARD, dataset_card(report["dataset"]))


def dataset_card(numbers: Mapping[str, Any]) -> bytes:
    """The card, from what `summarize_dataset` found."""
    metadata = yaml.safe_dump(_metadata(numbers), sort_keys=False, allow_unicode=True)
    lines = [
        f"---\n{metadata}---\n",
        f"# {_plain(numbers['name'])}\n",
        *describe_in_words(numbers),
        f"\nroot hash `{numbers['root_hash']}`\n\n## Sources\n",
        "| source | licence | language | documents | tokens |\n|---|---|---|---|---|",
        *(
            f"| {_plain(row['name'])} | {_plain(row['licence'] or NOT_STATED)} | {_plain(row['language'])}"
            f" | {row['documents']:,} | {row['tokens']:,} |"
            for row in numbers["mixture"]
        ),
        f"\n{_USE}",
    ]
    text = "\n".join(lines).encode()
    return text + f"<!-- written by build: {_digest(text)} -->\n".encode()


def is_unedited(card: bytes) -> bool:
    """Whether a README.md is one that a build wrote, and nobody changed since."""
    found = _MARK.search(card)
    return found is not None and found[1].decode() == _digest(card[: found.start()])


def describe_in_words(numbers: Mapping[str, Any]) -> Iterator[str]:
    """What a dataset holds, in sentences."""
    counters = numbers["counters"]
    yield (
        f"Masked and paired instances to pretrain BERT on, from {counters['documents']:,} distinct documents of"
        f" {counters['distinct_tokens']:,} tokens, with a vocabulary of {numbers['vocab_size']:,}."
    )
    for group in numbers["groups"]:
        yield (
            f"{group['split']} L{group['seq_len']}: {group['instances']:,} instances of {group['tokens']:,} tokens in"
            f" {group['passes']} pass(es)."
        )
    dropped = [
        f"{name.removeprefix('dropped_')} {count:,}"
        for name, count in sorted(counters.items())
        if name.startswith("dropped_") and count
    ]
    if dropped:
        yield f"Dropped documents: {', '.join(dropped)}."


def _metadata(numbers: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        row["licence"].lower().replace(" ", "-") or "unknown" for row in numbers["mixture"]
    } or {"unknown"}
    licences = sorted({name if name in {*_LICENCES, "unknown"} else "other" for name in names})
    languages = sorted({row["language"] for row in numbers["mixture"]})
    return {
        "pretty_name": numbers["name"],
        "license": licences if len(licences) > 1 else licences[0],
        **({"language": languages} if languages else {}),
        "size_categories": [_size(sum(group["instances"] for group in numbers["groups"]))],
        "task_categories": ["fill-mask"],
        "tags": ["bert", "webdataset"],
    }


def _size(instances: int) -> str:
    """The Hub's class of sizes."""
    previous = "n"
    for most, name in _SIZES:
        if instances < most:
            return f"{previous}<n<{name}" if previous != "n" else f"n<{name}"
        previous = name
    return f"n>{previous}"


def _plain(text: str) -> str:
    """Text that stays within its cell: no markup, no new line."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]
