"""Opens the datasets that a stream draws from, and checks that they fit together."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from pipeline.shards.dataset import Dataset, OpenedDataset, open_again, open_dataset
from pipeline.shards.growing import WaitPolicy, open_growing
from trainer.stream.order.order import check_weights
from trainer.stream.order.state import MAX_DATASETS

_ENTRY = re.compile(r"(?:(?P<name>[\w.-]+)=)?(?P<url>.+?)(?::(?P<weight>\d+))?")


@dataclass(frozen=True)
class WeightedDataset:
    """One dataset of a mixture.

    Attributes:
        name: Name of the dataset in metrics and messages.
        dataset: The opened dataset.
        weight: Weight of the dataset. The stream draws instances of each dataset in proportion to
            its weight.
    """

    name: str
    dataset: Dataset
    weight: int = 1


Mixture = tuple[WeightedDataset, ...]


def open_mixture(
    entries: Sequence[str],
    storage_options: Mapping[str, Any] | None = None,
    wait_policy: WaitPolicy | None = None,
) -> Mixture:
    """Opens the datasets of a mixture.

    Args:
        entries: One `[NAME=]URL[:WEIGHT]` per dataset, as `--data` takes them.
        storage_options: Options of the datasets' filesystems.
        wait_policy: How long to wait for datasets whose builds have not ended, or not begun. None
            opens finished datasets only.

    Raises:
        FileNotFoundError: There is no dataset at a URL, or none appeared as long as `wait_policy`
            allows to wait.
        ValueError: An entry is malformed, a dataset is damaged, or the datasets do not fit each
            other.
    """

    def open_url(url: str) -> Dataset:
        if wait_policy is None:
            return open_dataset(url, storage_options)
        return open_growing(url, storage_options, wait_policy)

    mixture = tuple(
        WeightedDataset(name, open_url(url), weight) for name, url, weight in parse_entries(entries)
    )
    refuse_disagreement(mixture)
    return mixture


OpenedMixture = tuple[tuple[str, OpenedDataset, int], ...]
"""Name, tables and weight of each dataset, in a form that can be sent to other processes."""


def opened_mixture(mixture: Mixture) -> OpenedMixture:
    """Returns what another process needs to open the same mixture without reading files.

    The result can be sent to the other process, which passes it to `open_mixture_again`.

    Raises:
        ValueError: A table cannot be read.
        FileNotFoundError: A table is missing.
    """
    return tuple((source.name, source.dataset.opened(), source.weight) for source in mixture)


def open_mixture_again(
    opened: OpenedMixture, storage_options: Mapping[str, Any] | None = None
) -> Mixture:
    """Returns a mixture that another process has opened and checked; it reads no file.

    Args:
        opened: The result of `opened_mixture` in the other process.
        storage_options: Options of the datasets' filesystems.
    """
    return tuple(
        WeightedDataset(name, open_again(tables, storage_options), weight)
        for name, tables, weight in opened
    )


def one_dataset(dataset: Dataset) -> Mixture:
    """Returns the mixture of one dataset, named "data"."""
    return (WeightedDataset("data", dataset),)


def parse_entries(entries: Sequence[str]) -> list[tuple[str, str, int]]:
    """Returns name, URL and weight of each entry `[NAME=]URL[:WEIGHT]`.

    The default name is the last part of the URL, numbered if another dataset has that name.

    Raises:
        ValueError: An entry is malformed or a duplicate, or the number of entries or the weights
            are out of bounds.
    """
    if not 1 <= len(entries) <= MAX_DATASETS:
        raise ValueError(f"data names {len(entries)} datasets; 1 to {MAX_DATASETS} can be mixed")
    parsed: dict[str, tuple[str, int]] = {}
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(f"data: {entry!r} is not [NAME=]URL[:WEIGHT]")
        name = match["name"]
        url = match["url"]
        weight = int(match["weight"] or 1)
        if name in parsed or url in [earlier_url for earlier_url, _ in parsed.values()]:
            raise ValueError(
                f"data names {name if name in parsed else url} twice; a larger weight draws more of"
                " it"
            )
        if name is None:
            last_part = url.rstrip("/").rpartition("/")[2] or url
            names = chain([last_part], (f"{last_part}-{number}" for number in count(2)))
            name = next(free for free in names if free not in parsed)
        parsed[name] = (url, weight)
    check_weights([weight for _, weight in parsed.values()])
    return [(name, url, weight) for name, (url, weight) in parsed.items()]


def refuse_disagreement(mixture: Mixture) -> None:
    """Raises a ValueError if one model cannot be trained on all datasets of a mixture.

    Vocabulary, special ids, lower-casing and the setting `words` have to be the same.
    """
    first = mixture[0].dataset
    expected = _shared_facts(first)
    for source in mixture[1:]:
        facts = _shared_facts(source.dataset)
        differences = [
            f"{key} {expected[key]} and {facts[key]}"
            for key in expected
            if expected[key] != facts[key]
        ]
        if differences:
            raise ValueError(
                f"{first.url} and {source.dataset.url} cannot be mixed: they have"
                f" {'; '.join(differences)}. Build"
                " them with the same --vocab, --lower_case and --words"
            )


def _shared_facts(dataset: Dataset) -> dict[str, object]:
    """Returns the facts that all datasets of a mixture must share, by their names in messages."""
    manifest = dataset.manifest
    return {
        "vocabularies (sha256)": manifest.vocab_sha256[:16],
        "vocab_size": manifest.vocab_size,
        "special_ids": dict(sorted(manifest.special_ids.items())),
        "lower_case": manifest.settings.get("lower_case"),
        "words": manifest.settings.get("words", "bert"),
    }
