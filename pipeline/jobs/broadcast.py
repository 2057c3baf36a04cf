"""What a job sends to all workers: small values in its description, large ones by a file beside its output.

Dataflow refuses descriptions above 10 MB, and every worker process keeps what is in them. A file is
JSON, and its hash stands in the description, so a worker takes no other file for it. Files go with
the other leftovers of the stage.
"""

import base64
import json
import typing
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from types import GenericAlias
from typing import Any

import apache_beam as beam

import tokenizer
from pipeline.jobs import worker_guard
from pipeline.storage.folder import Folder
from tokenizer.compiled import load

worker_guard.watch_in_workers()

MAX_INLINE_BYTES = 2**20
_ELEMENTS_PER_FILE = 4096
_PACKAGES = (Path(__file__).parents[1], Path(tokenizer.__file__).parent)


@dataclass(frozen=True)
class Broadcast:
    """A value for all workers, as JSON or in a file that is named by the hash of its bytes."""

    kind: Any
    data: bytes
    folder: Folder
    digest: str = ""

    def get(self) -> Any:
        """The value; the same object at every call in a process.

        Raises:
            ValueError: The file holds something else.
        """
        return _unpack(self)


def broadcast(value: object, kind: Any, folder: Folder) -> Broadcast:
    """Packs text, numbers, bytes, dataclasses or tuples of these, large ones into a file in the folder."""
    data = json.dumps(_to_json(value), separators=(",", ":")).encode()
    if len(data) <= MAX_INLINE_BYTES:
        return Broadcast(kind, data, folder)
    digest = _digest(data)
    folder.write(_file_name(digest), data)
    return Broadcast(kind, b"", folder, digest)


class CreateElements(beam.PTransform):  # type: ignore[misc]
    """The elements of a list, spread over all workers; long lists are read from files, some thousands at a time."""

    def __init__(self, elements: Sequence[Any], folder: Folder) -> None:
        super().__init__()
        self._elements, self._folder = tuple(elements), folder

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        """The graph; workers with other code than the launcher's end it."""
        return self._create(pipeline) | beam.Map(refuse_other_code, hash_code())

    def _create(self, pipeline: beam.Pipeline) -> beam.PCollection:
        if len(json.dumps(_to_json(self._elements))) <= MAX_INLINE_BYTES:
            return pipeline | beam.Create(self._elements, reshuffle=True)
        kind = GenericAlias(tuple, (type(self._elements[0]), ...))
        lists = [
            broadcast(self._elements[first : first + _ELEMENTS_PER_FILE], kind, self._folder)
            for first in range(0, len(self._elements), _ELEMENTS_PER_FILE)
        ]
        found = pipeline | beam.Create(lists, reshuffle=True) | beam.FlatMap(Broadcast.get)
        return found | beam.Reshuffle()


@lru_cache(maxsize=1)
def hash_code() -> str:
    """Hash of the Python files that a build runs, as they lie in this process's packages.

    And of whether wikitext is read by the compiled reader, which is no twin to the last bit as the
    other modules are.
    """
    digest = blake2b(b"" if load("pipeline.wiki._wikitext") else b"defined wikitext", digest_size=8)
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


def _file_name(digest: str) -> str:
    return f"broadcast-{digest}.json"


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


@lru_cache(maxsize=8)
def _unpack(found: Broadcast) -> Any:
    data = found.data or found.folder.read(_file_name(found.digest))
    if not found.data and _digest(data) != found.digest:
        raise ValueError(
            f"{found.folder.locate(_file_name(found.digest))} is not what this job wrote there: somebody else"
            " writes to this folder, or it is damaged; delete the file and run again"
        )
    return _from_json(json.loads(data), found.kind)


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        return [_to_json(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, tuple):
        return [_to_json(each) for each in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _from_json(data: Any, kind: Any) -> Any:
    if isinstance(kind, type) and is_dataclass(kind):
        pairs = zip(data, _field_types(kind), strict=True)
        return kind(*(_from_json(each, own) for each, own in pairs))
    if typing.get_origin(kind) is tuple:
        own = typing.get_args(kind)
        kinds = own[:1] * len(data) if own[1:] == (...,) else own
        return tuple(_from_json(each, one) for each, one in zip(data, kinds, strict=True))
    return base64.b64decode(data) if kind is bytes else data


@lru_cache
def _field_types(kind: Any) -> list[Any]:
    hints = typing.get_type_hints(kind)
    return [hints[field.name] for field in fields(kind)]
