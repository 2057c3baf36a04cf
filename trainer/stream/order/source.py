"""The datasets a stream draws from: named and weighted, and agreeing with each other."""

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
    """One dataset of a mixture."""

    name: str
    dataset: Dataset
    weight: int = 1


Mixture = tuple[WeightedDataset, ...]


def open_mixture(
    entries: Sequence[str],
    storage_options: Mapping[str, Any] | None = None,
    wait_policy: WaitPolicy | None = None,
) -> Mixture:
    """Opens the datasets of `[NAME=]URL[:WEIGHT]`; with a wait policy, those still being built.

    Raises:
        FileNotFoundError: There is no dataset, or waiting for it ended.
        ValueError: A dataset is damaged, or they do not agree.
    """

    def opened(url: str) -> Dataset:
        if wait_policy is None:
            return open_dataset(url, storage_options)
        return open_growing(url, storage_options, wait_policy)

    named = parse_entries(entries)
    mixture = tuple(WeightedDataset(name, opened(url), weight) for name, url, weight in named)
    refuse_disagreement(mixture)
    return mixture


OpenedMixture = tuple[tuple[str, OpenedDataset, int], ...]
"""Name, tables and weight of each dataset, as one process sends them to others."""


def opened_mixture(mixture: Mixture) -> OpenedMixture:
    """What `open_mixture_again` takes in another process; raises as `Dataset.opened`."""
    return tuple((each.name, each.dataset.opened(), each.weight) for each in mixture)


def open_mixture_again(
    opened: OpenedMixture, storage_options: Mapping[str, Any] | None = None
) -> Mixture:
    """The mixture that another process has opened and checked; nothing is read."""
    return tuple(
        WeightedDataset(name, open_again(tables, storage_options), weight)
        for name, tables, weight in opened
    )


def one_dataset(dataset: Dataset) -> Mixture:
    """A mixture of one."""
    return (WeightedDataset("data", dataset),)


def parse_entries(entries: Sequence[str]) -> list[tuple[str, str, int]]:
    """Name, URL and weight of each `[NAME=]URL[:WEIGHT]`; the end of a URL is its default name."""
    if not 1 <= len(entries) <= MAX_DATASETS:
        raise ValueError(f"data names {len(entries)} datasets; 1 to {MAX_DATASETS} can be mixed")
    found: dict[str, tuple[str, int]] = {}
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(f"data: {entry!r} is not [NAME=]URL[:WEIGHT]")
        name, url, weight = match["name"], match["url"], int(match["weight"] or 1)
        if name in found or url in [each for each, _ in found.values()]:
            raise ValueError(
                f"data names {name if name in found else url} twice; a larger weight draws more of"
                " it"
            )
        if name is None:
            end = url.rstrip("/").rpartition("/")[2] or url
            names = chain([end], (f"{end}-{n}" for n in count(2)))
            name = next(each for each in names if each not in found)
        found[name] = url, weight
    check_weights([weight for _, weight in found.values()])
    return [(name, *rest) for name, rest in found.items()]


def refuse_disagreement(mixture: Mixture) -> None:
    """Refuses, by a ValueError, datasets that one model cannot be trained on."""
    first = mixture[0].dataset
    for other in (each.dataset for each in mixture[1:]):
        ours, theirs = _facts(first), _facts(other)
        if differ := [
            f"{key} {ours[key]} and {theirs[key]}" for key in ours if ours[key] != theirs[key]
        ]:
            raise ValueError(
                f"{first.url} and {other.url} cannot be mixed: they have {'; '.join(differ)}. Build"
                " them with the same --vocab, --lower_case and --words"
            )


def _facts(dataset: Dataset) -> dict[str, object]:
    manifest = dataset.manifest
    return {
        "vocabularies (sha256)": manifest.vocab_sha256[:16],
        "vocab_size": manifest.vocab_size,
        "special_ids": dict(sorted(manifest.special_ids.items())),
        "lower_case": manifest.settings.get("lower_case"),
        "words": manifest.settings.get("words", "bert"),
    }
