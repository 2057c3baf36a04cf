"""The datasets a stream draws from: named and weighted, agreeing with each other, read as one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, count
from operator import attrgetter
from typing import Any, Protocol

from pipeline.shards.block_tables import Keep
from pipeline.shards.dataset import Dataset, OpenedDataset, open_again, open_dataset
from pipeline.shards.growing import WaitPolicy, open_growing
from pipeline.shards.records import BlockTable, Shard
from pipeline.storage.faults import ATTEMPTS
from trainer.order.order import check_weights
from trainer.order.state import MAX_DATASETS

_NAMES = [field.name for field in fields(Shard)]
_NAME, _values_of = _NAMES.index("name"), attrgetter(*_NAMES)
_ENTRY = re.compile(r"(?:(?P<name>[\w.-]+)=)?(?P<url>.+?)(?::(?P<weight>\d+))?")


class ShardStore(Protocol):
    """Shards that can be read in ranges: a dataset, or several as one."""

    @property
    def vocab_size(self) -> int:
        """Every token id is below it."""

    @property
    def is_local(self) -> bool:
        """Whether all files are on this machine's own disks."""

    def locate(self, name: str) -> str:
        """The URL of a file, for messages."""

    def blocks(
        self, shard: Shard, attempts: int = ATTEMPTS, keep: Keep | None = None
    ) -> BlockTable:
        """Where a shard's blocks lie, as `Dataset.blocks`."""

    def read_bytes(self, name: str, start: int, stop: int) -> bytes:
        """Bytes start to stop - 1 of a file, by one request."""


@dataclass(frozen=True)
class DataEntry:
    """One dataset as a person names it.

    Attributes:
        name: What reports call it; unique in a mixture.
        url: Folder or URL.
        weight: Its share of the instances, relative to those of the others.
    """

    name: str
    url: str
    weight: int


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
    """Opens the datasets that `[NAME=]URL[:WEIGHT]` name.

    Args:
        entries: One or several.
        storage_options: Options of their filesystems.
        wait_policy: How to wait for builds that still run; None takes finished datasets only.

    Raises:
        FileNotFoundError: There is no dataset, or waiting for it ended.
        ValueError: A dataset is damaged, or they do not agree.
    """
    mixture = []
    for entry in parse_entries(entries):
        opened = (
            open_dataset(entry.url, storage_options)
            if wait_policy is None
            else open_growing(entry.url, storage_options, wait_policy)
        )
        mixture.append(WeightedDataset(entry.name, opened, entry.weight))
    refuse_disagreement(tuple(mixture))
    return tuple(mixture)


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


class JoinedShards:
    """The shards of several datasets as one store, each named by its whole URL."""

    def __init__(self, vocab_size: int) -> None:
        """A store without shards yet; every dataset is to have this vocab_size."""
        self.vocab_size = vocab_size
        self._homes: dict[str, tuple[Dataset, Shard]] = {}

    def add(self, dataset: Dataset, shard: Shard) -> Shard:
        """Takes in a shard; it goes by the name returned."""
        url = dataset.locate(shard.name)
        self._homes[url] = (dataset, shard)
        values = [*_values_of(shard)]  # half of what `replace` takes, of 80,000
        values[_NAME] = url
        return Shard(*values)

    @property
    def is_local(self) -> bool:
        """Whether all shards so far are on this machine's own disks."""
        return all(dataset.is_local for dataset, _ in self._homes.values())

    def locate(self, name: str) -> str:
        """The URL of a shard, which is its name here."""
        return name

    def blocks(
        self, shard: Shard, attempts: int = ATTEMPTS, keep: Keep | None = None
    ) -> BlockTable:
        """Where a shard's blocks lie, as `Dataset.blocks`."""
        dataset, own = self._homes[shard.name]
        return dataset.blocks(own, attempts, keep)

    def read_bytes(self, name: str, start: int, stop: int) -> bytes:
        """Bytes start to stop - 1 of a shard, by one request; raises OSError where others come."""
        dataset, own = self._homes[name]
        return dataset.read_bytes(own.name, start, stop)


def parse_entries(entries: Sequence[str]) -> tuple[DataEntry, ...]:
    """Reads `[NAME=]URL[:WEIGHT]`; without a name a dataset goes by the end of its URL.

    Raises:
        ValueError: None, too many, a name or URL twice, or weights that are no shares.
    """
    if not 1 <= len(entries) <= MAX_DATASETS:
        raise ValueError(f"data names {len(entries)} datasets; 1 to {MAX_DATASETS} can be mixed")
    found: list[DataEntry] = []
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(f"data: {entry!r} is not [NAME=]URL[:WEIGHT]")
        name, url, weight = match["name"], match["url"], int(match["weight"] or 1)
        taken = {each.name for each in found}
        if name in taken or url in {each.url for each in found}:
            raise ValueError(
                f"data names {name if name in taken else url} twice; a larger weight draws from it more"
            )
        found.append(DataEntry(name or _name_by_url(url, taken), url, weight))
    check_weights([each.weight for each in found])
    return tuple(found)


def refuse_disagreement(mixture: Mixture) -> None:
    """Checks that one model can be trained on all datasets.

    Raises:
        ValueError: Vocabulary, special tokens or lower-casing differ; the message says which and
            where.
    """
    first = mixture[0]
    for other in mixture[1:]:
        ours, theirs = _facts(first.dataset), _facts(other.dataset)
        if differ := [
            f"{key} {ours[key]} and {theirs[key]}" for key in ours if ours[key] != theirs[key]
        ]:
            raise ValueError(
                f"{first.dataset.url} and {other.dataset.url} cannot be mixed: they have {'; '.join(differ)}. Build"
                " them with the same --vocab and --lower_case"
            )


def _facts(dataset: Dataset) -> dict[str, object]:
    manifest = dataset.manifest
    return {
        "vocabularies (sha256)": manifest.vocab_sha256[:16],
        "vocab_size": manifest.vocab_size,
        "special_ids": dict(sorted(manifest.special_ids.items())),
        "lower_case": manifest.settings.get("lower_case"),
    }


def _name_by_url(url: str, taken: set[str]) -> str:
    name = url.rstrip("/").rpartition("/")[2] or url
    return next(
        each for each in chain([name], (f"{name}-{n}" for n in count(2))) if each not in taken
    )
