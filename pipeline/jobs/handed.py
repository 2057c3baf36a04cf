"""What a job hands to its workers: small things in its description, large ones by a file on the store.

Dataflow refuses descriptions above 10 MB, and every worker process keeps what is in them. The files lie where the job
writes, are named by their content, and go with the other leftovers of the stage.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import apache_beam as beam

from pipeline.jobs import worker_guard
from pipeline.storage.folder import Folder

worker_guard.watch_in_workers()

MAX_INLINE_BYTES = 2**20
_LIST_BYTES = 2**18


@dataclass(frozen=True)
class Handed:
    """A value that a worker unpacks once: its bytes, or where they lie."""

    data: bytes
    folder: Folder
    name: str = ""

    def get(self) -> Any:
        """The value; the same object at every call in a process."""
        return _unpack(self)


def hand_over(value: object, folder: Folder) -> Handed:
    """Packs a value, into a file in the folder where it is large."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return Handed(data, folder) if len(data) <= MAX_INLINE_BYTES else Handed(b"", folder, _write(folder, data))


class CreateElements(beam.PTransform):  # type: ignore[misc]
    """The elements of a list, spread over all workers; a long list is read from a file, some at a time."""

    def __init__(self, elements: Sequence[Any], folder: Folder) -> None:
        """Keeps them.

        Args:
            elements: What can be pickled.
            folder: Takes the file.
        """
        super().__init__()
        self._elements, self._folder = list(elements), folder

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        lists = _pack_lists(self._elements)
        if sum(map(len, lists)) <= MAX_INLINE_BYTES:
            return pipeline | beam.Create(self._elements, reshuffle=True)
        name = _write(self._folder, b"".join(lists))
        stops = [sum(map(len, lists[: number + 1])) for number in range(len(lists))]
        ranges = [(stop - len(data), stop) for stop, data in zip(stops, lists, strict=True)]
        found = pipeline | beam.Create(ranges, reshuffle=True) | beam.FlatMap(read_list, self._folder, name)
        return found | beam.Reshuffle()


def read_list(place: tuple[int, int], folder: Folder, name: str) -> list[Any]:
    """The elements in a range of a file."""
    found: list[Any] = pickle.loads(folder.read_range(name, *place))
    return found


def _pack_lists(elements: Sequence[Any]) -> list[bytes]:
    """Pickled lists of neighbouring elements, of some 256 kB."""
    whole = len(pickle.dumps(list(elements), pickle.HIGHEST_PROTOCOL))
    number = max(1, whole // _LIST_BYTES)
    bounds = [len(elements) * place // number for place in range(number + 1)]
    return [
        pickle.dumps(list(elements[bounds[place] : bounds[place + 1]]), pickle.HIGHEST_PROTOCOL)
        for place in range(number)
    ]


def _write(folder: Folder, data: bytes) -> str:
    name = f"handed-{blake2b(data, digest_size=16).hexdigest()}.pickle"
    folder.write(name, data)
    return name


@lru_cache(maxsize=8)
def _unpack(handed: Handed) -> Any:
    return pickle.loads(handed.data or handed.folder.read(handed.name))
