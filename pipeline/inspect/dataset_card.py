"""Writes the README.md of a dataset, its card on the Hugging Face Hub: contents and licences.

The last line of the card holds a hash of the text before it. A later build compares the hash, and
does not replace a card that somebody has edited.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from pipeline.inspect.mixture import find_dropped
from pipeline.shards.dataset import Dataset
from pipeline.shards.instance_kind import INSTANCES, has_pairs
from pipeline.shards.redactions import describe_redactions

CARD = "README.md"
NOT_STATED = "not stated"
"""Stands for the licence of a source that names none."""
_MARK = re.compile(rb"<!-- written by build: ([0-9a-f]{16}) -->\n\Z")
_LICENCES = re.compile(
    r"apache-2\.0|mit|odbl|odc-by|pddl|gfdl|unknown|cc0-1\.0|cc-by(-sa)?-[34]\.0"
    r"|cc-by-(nc|nc-sa|nd)-4\.0"
)
"""Licences that the Hub has a name for; the card calls any other licence `other`."""
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
"""Limits of the Hub's size classes."""
_RECIPE = "configs/pretrain/bert-base.yaml"
_USE = """## Use

```bash
hf download OWNER/NAME --repo-type dataset --local-dir data
python -m trainer pretrain --config {recipe} --data data --output run
```

The shards are tar files of Arrow blocks, which `webdataset` iterates too. `manifest.json` has every
setting and count, and `report.html` shows them.
"""


def write_card(dataset: Dataset, report: Mapping[str, Any]) -> None:
    """Writes README.md into a dataset, unless there is one that somebody wrote or edited.

    Args:
        dataset: The finished dataset.
        report: The content of report.json.
    """
    if not dataset.folder.exists(CARD) or is_unedited(dataset.folder.read(CARD)):
        dataset.folder.write(CARD, dataset_card(report["dataset"]))


def dataset_card(numbers: Mapping[str, Any]) -> bytes:
    """Returns the text of README.md.

    Args:
        numbers: The result of `pipeline.inspect.summary.summarize_dataset`.
    """
    recipe = _RECIPE if has_pairs(numbers["settings"]) else f"{_RECIPE} --objective mlm"
    metadata = yaml.safe_dump(_metadata(numbers), sort_keys=False, allow_unicode=True)
    lines = [
        f"---\n{metadata}---\n",
        f"# {_plain(numbers['name'])}\n",
        *describe_in_words(numbers),
        f"\nroot hash `{numbers['root_hash']}`\n\n## Sources\n",
        "| source | licence | language | documents | tokens |\n|---|---|---|---|---|",
        *(
            f"| {_plain(row['name'])} | {_plain(row['licence'] or NOT_STATED)}"
            f" | {_plain(row['language'])} | {row['documents']:,} | {row['tokens']:,} |"
            for row in numbers["mixture"]
        ),
        f"\n{_USE.format(recipe=recipe)}",
    ]
    text = "\n".join(lines).encode()
    return text + f"<!-- written by build: {_digest(text)} -->\n".encode()


def is_unedited(card: bytes) -> bool:
    """Returns whether a build wrote the given README.md and nobody has changed it since."""
    match = _MARK.search(card)
    return match is not None and match[1].decode() == _digest(card[: match.start()])


def describe_in_words(numbers: Mapping[str, Any]) -> Iterator[str]:
    """Yields sentences about a dataset's documents, its instances by split, and what it lacks.

    Args:
        numbers: The result of `pipeline.inspect.summary.summarize_dataset`.
    """
    counters = numbers["counters"]
    kind = "Masked and paired instances"
    if not has_pairs(numbers["settings"]):
        kind = f"Masked instances of one segment ({numbers['settings'][INSTANCES]})"
    yield (
        f"{kind} to pretrain BERT on, from {counters['documents']:,} distinct"
        f" documents of {counters['distinct_tokens']:,} tokens, with a vocabulary of"
        f" {numbers['vocab_size']:,}."
    )
    for group in numbers["groups"]:
        held = f"{group['instances']:,} instances of {group['tokens']:,} tokens"
        yield f"{group['split']} L{group['seq_len']}: {held} in {group['passes']} pass(es)."
    if dropped := find_dropped(counters):
        reasons = ", ".join(f"{name} {count:,}" for name, count in sorted(dropped.items()))
        yield f"Dropped documents: {reasons}."
    yield from describe_redactions(numbers["settings"])


def _metadata(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metadata of the card, which the Hub reads from the YAML at the top of README.md.

    Args:
        numbers: The result of `pipeline.inspect.summary.summarize_dataset`.
    """
    names = [row["licence"].lower().replace(" ", "-") or "unknown" for row in numbers["mixture"]]
    known = {name if _LICENCES.fullmatch(name) else "other" for name in names or ["unknown"]}
    licences = sorted(known)
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
    """Returns the Hub's size class for a number of instances, such as "1K<n<10K"."""
    power = max(0, len(str(instances)) - 3)
    if power == 0:
        return f"n<{_SIZES[0]}"
    return f"{_SIZES[power - 1]}<n<{_SIZES[power]}" if power < len(_SIZES) else f"n>{_SIZES[-1]}"


def _plain(text: str) -> str:
    """Returns a text for a cell of a Markdown table: on one line, its markup escaped."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def _digest(text: bytes) -> str:
    """Returns the hash that the last line of a card holds: 16 hex digits of SHA-256.

    Args:
        text: The card without its last line.
    """
    return hashlib.sha256(text).hexdigest()[:16]
