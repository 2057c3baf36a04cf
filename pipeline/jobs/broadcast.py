"""What a job sends to all workers: small values in its description, large ones by a file.

Dataflow refuses descriptions above 10 MB, and every worker process keeps what is in them. The hash
of a file stands in the description, so a worker reads no other file for it; it is JSON, as what
lies beside data must run no code.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from types import GenericAlias
from typing import Any, get_args, get_origin, get_type_hints

import apache_beam as beam

import tokenizer
from pipeline.jobs import worker_guard
from pipeline.storage.folder import Folder

worker_guard.watch_in_workers()

MAX_INLINE_BYTES = 2**20
_ELEMENTS_PER_FILE = 4096
_PACKAGES = (Path(__file__).parents[1], Path(tokenizer.__file__).parent)


@dataclass(frozen=True)
class Broadcast:
    """A value for all workers as JSON, or in a file that is named by the hash of its bytes."""

    kind: Any
    folder: Folder
    digest: str
    data: bytes = b""

    @property
    def file_name(self) -> str:
        """The file in the folder, where there is one."""
        return f"broadcast-{self.digest}.json"

    def get(self) -> Any:
        """The value, the same object at every call in a process; ValueError for another file."""
        return _unpack(self)


def broadcast(value: object, folder: Folder) -> Broadcast:
    """Packs a tuple or dataclass of text, numbers, bytes and such, a large one into a file."""
    packed = _pack(value, folder)
    sent = _without_large_data(packed)
    if not sent.data:
        folder.write(sent.file_name, packed.data)
    return sent


def describe_broadcast(value: object, folder: Folder) -> Broadcast:
    """Returns what `broadcast` returns for the same value, and writes no file.

    If the result has no `data`, the file is needed: call `broadcast` before anybody calls `get`.
    """
    return _without_large_data(_pack(value, folder))


def _pack(value: object, folder: Folder) -> Broadcast:
    kind: Any = type(value)
    if isinstance(value, tuple) and value:
        kind = GenericAlias(tuple, (type(value[0]), ...))
    data = json.dumps(value, default=_to_json).encode()
    return Broadcast(kind, folder, _digest(data), data)


def _without_large_data(packed: Broadcast) -> Broadcast:
    if len(packed.data) <= MAX_INLINE_BYTES:
        return packed
    return Broadcast(packed.kind, packed.folder, packed.digest)


class CreateElements(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[Any]]  # type: ignore[misc]
):
    """The elements of a list, spread over all workers; long lists are read from files."""

    def __init__(self, elements: Sequence[Any], folder: Folder) -> None:
        super().__init__()
        self._elements, self._folder = tuple(elements), folder

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        """The graph; workers with other code than the launcher's end it."""
        return self._create(pipeline) | "RefuseOtherCode" >> beam.Map(
            refuse_other_code, hash_code()
        )

    def _create(self, pipeline: beam.Pipeline) -> beam.PCollection:
        if len(json.dumps(self._elements, default=_to_json)) <= MAX_INLINE_BYTES:
            return pipeline | beam.Create(self._elements, reshuffle=True)
        lists = [
            broadcast(self._elements[first : first + _ELEMENTS_PER_FILE], self._folder)
            for first in range(0, len(self._elements), _ELEMENTS_PER_FILE)
        ]
        found = pipeline | beam.Create(lists, reshuffle=True) | beam.FlatMap(Broadcast.get)
        return found | beam.Reshuffle()


@lru_cache(maxsize=1)
def hash_code() -> str:
    """Returns a hash of the Python files of this project's packages.

    Compiled modules are left out: they give the same results as these files, so workers may or may
    not have them.
    """
    digest = blake2b(digest_size=8)
    for package in _PACKAGES:
        for path in sorted(package.rglob("*.py")):
            digest.update(f"{path.relative_to(package.parent)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def refuse_other_code(element: Any, launchers: str) -> Any:
    """The element, where this process has the code of the launcher; ValueError elsewhere."""
    if hash_code() != launchers:
        raise ValueError(
            f"a worker has other code of this package than the launcher ({hash_code()}, expected"
            f" {launchers}); install the launcher's wheel where workers run, or build their image"
            " anew"
        )
    return element


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


@lru_cache(maxsize=8)
def _unpack(sent: Broadcast) -> Any:
    data = sent.data or sent.folder.read(sent.file_name)
    if _digest(data) != sent.digest:
        raise ValueError(
            f"{sent.folder.locate(sent.file_name)} is not what this job wrote there: somebody else"
            " writes to this folder, or it is damaged; delete the file and run again"
        )
    return _from_json(json.loads(data), sent.kind)


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return [getattr(value, field.name) for field in fields(value)]


def _from_json(data: Any, kind: Any) -> Any:
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(*map(_from_json, data, _field_types(kind).values()))
    if get_origin(kind) is tuple:
        return tuple(_from_json(each, get_args(kind)[0]) for each in data)
    return bytes.fromhex(data) if kind is bytes else data


_field_types = lru_cache(get_type_hints)
