"""What a job hands to its workers: small things in its description, large ones by a file on the store.

Dataflow refuses descriptions above 10 MB, and every worker process keeps what is in them. The files
lie where the job writes, are named by their content, and go with the other leftovers of the stage.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import apache_beam as beam

import tokenizer
from pipeline.jobs import worker_guard
from pipeline.storage.folder import Folder
from tokenizer.compiled import load

worker_guard.watch_in_workers()

MAX_INLINE_BYTES = 2**20
_LIST_BYTES = 2**18
_PACKAGES = (Path(__file__).parents[1], Path(tokenizer.__file__).parent)


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
    return (
        Handed(data, folder)
        if len(data) <= MAX_INLINE_BYTES
        else Handed(b"", folder, _write(folder, data))
    )


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
        return self._create(pipeline) | beam.Map(refuse_other_code, hash_code())

    def _create(self, pipeline: beam.Pipeline) -> beam.PCollection:
        lists = _pack_lists(self._elements)
        if sum(map(len, lists)) <= MAX_INLINE_BYTES:
            return pipeline | beam.Create(self._elements, reshuffle=True)
        name = _write(self._folder, b"".join(lists))
        stops = [sum(map(len, lists[: number + 1])) for number in range(len(lists))]
        ranges = [(stop - len(data), stop) for stop, data in zip(stops, lists, strict=True)]
        found = (
            pipeline
            | beam.Create(ranges, reshuffle=True)
            | beam.FlatMap(read_list, self._folder, name)
        )
        return found | beam.Reshuffle()


@lru_cache(maxsize=1)
def hash_code() -> str:
    """Hash of the Python files that a build runs, as they lie in this process's packages.

    And of whether wikitext is read by the compiled reader, which is no twin to the last bit as the
    other modules are.
    """
    digest = blake2b(
        b"" if load("pipeline.documents._wikitext") else b"defined wikitext", digest_size=8
    )
    for package in _PACKAGES:
        for path in sorted(package.rglob("*.py")):
            digest.update(f"{path.relative_to(package.parent)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def refuse_other_code(element: Any, launchers: str) -> Any:
    """The element, where this process has the code of the launcher.

    Raises:
        ValueError: It has another version of it, and might build something else without a word.
    """
    if hash_code() != launchers:
        raise ValueError(
            f"a worker has other code of this package than the launcher ({hash_code()}, expected {launchers}), or"
            " only one of them was built with a C compiler; install the launcher's wheel where workers run, or build"
            " their image anew"
        )
    return element


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
