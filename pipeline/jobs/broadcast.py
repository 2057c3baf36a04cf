"""Sends values from a job's launcher to all workers.

Small values are part of the job's description. Large ones go into a file, because Dataflow refuses
descriptions above 10 MB, and every worker process keeps its description in memory. The description
has the hash of the file, so that a worker does not take another file for it. The file is JSON and
not a pickle, because a file among data must not run code.
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
ELEMENTS_PER_FILE = 4096
_PACKAGES = (Path(__file__).parents[1], Path(tokenizer.__file__).parent)  # hashed by hash_code


@dataclass(frozen=True)
class Broadcast:
    """A value that is sent to all workers, as JSON.

    Attributes:
        kind: The type of the value, by which the JSON is converted back.
        folder: The folder that receives the file of a large value.
        digest: Hash of the JSON.
        data: The JSON of a small value; empty if the value is large and its JSON is in the file.
    """

    kind: Any
    folder: Folder
    digest: str
    data: bytes = b""

    @property
    def file_name(self) -> str:
        """Name that the file with the JSON has in the folder. Only a large value has a file."""
        return f"broadcast-{self.digest}.json"

    def get(self) -> Any:
        """Returns the value. A process reads it once and then returns the same object.

        Raises:
            FileNotFoundError: The file is missing.
            ValueError: The file is not the one that was written.
        """
        return _unpack(self)


def broadcast(value: object, folder: Folder) -> Broadcast:
    """Packs a value for all workers. If it is large, its file is written.

    Args:
        value: A tuple of values of one type, or a dataclass. Its parts are text, numbers, bytes, or
            again such tuples and dataclasses.
        folder: Receives the file.
    """
    packed = _pack(value, folder)
    sent = _without_large_data(packed)
    if not sent.data:
        folder.write(sent.file_name, packed.data)
    return sent


def _send_in_file(value: object, folder: Folder) -> Broadcast:
    """Packs a value for all workers, and writes its file even if the value is small.

    It is for one of many values, which together would make the job's description too large.
    """
    packed = _pack(value, folder)
    folder.write(packed.file_name, packed.data)
    return Broadcast(packed.kind, packed.folder, packed.digest)


def describe_broadcast(value: object, folder: Folder) -> Broadcast:
    """Returns the same result as `broadcast`, but writes no file.

    If the result has no `data`, its `get` needs the file. Then call `broadcast` with the same
    arguments before the result is used.
    """
    return _without_large_data(_pack(value, folder))


def _pack(value: object, folder: Folder) -> Broadcast:
    """Packs a value with its JSON in `data`, however large."""
    kind: Any = type(value)
    if isinstance(value, tuple) and value:
        kind = GenericAlias(tuple, (type(value[0]), ...))
    data = json.dumps(value, default=_to_json).encode()
    return Broadcast(kind, folder, _digest(data), data)


def _without_large_data(packed: Broadcast) -> Broadcast:
    """Returns a packed value, without its data if they are larger than MAX_INLINE_BYTES."""
    if len(packed.data) <= MAX_INLINE_BYTES:
        return packed
    return Broadcast(packed.kind, packed.folder, packed.digest)


class CreateElements(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[Any]]  # type: ignore[misc]
):
    """Creates a PCollection of the elements of a list, and spreads them over all workers.

    Workers check that they have the same code as the launcher. If the list is long, the launcher
    writes it to files, and workers read these.
    """

    def __init__(self, elements: Sequence[Any], folder: Folder) -> None:
        """Keeps the arguments.

        Args:
            elements: The elements. Each is a value that `broadcast` can send.
            folder: Receives the files of a long list.
        """
        super().__init__()
        self._elements = tuple(elements)
        self._folder = folder

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        """Adds the elements to a pipeline.

        While the pipeline runs, a worker whose code is not the launcher's raises ValueError.
        """
        return self._create(pipeline) | RefuseOtherCode()

    def _create(self, pipeline: beam.Pipeline) -> beam.PCollection:
        """Adds the elements to a pipeline, without the check of the workers' code."""
        if len(json.dumps(self._elements, default=_to_json)) <= MAX_INLINE_BYTES:
            return pipeline | beam.Create(self._elements, reshuffle=True)
        lists = [
            _send_in_file(self._elements[first : first + ELEMENTS_PER_FILE], self._folder)
            for first in range(0, len(self._elements), ELEMENTS_PER_FILE)
        ]
        elements = pipeline | beam.Create(lists, reshuffle=True) | beam.FlatMap(Broadcast.get)
        return elements | beam.Reshuffle()


class RefuseOtherCode(
    beam.PTransform[beam.PCollection[Any], beam.PCollection[Any]]  # type: ignore[misc]
):
    """Passes elements on, after checking that the worker has the same code as the launcher.

    The check takes time only at the first element of a worker process, but each element passes
    through one more step. So it is put where elements are large, such as lists of documents.
    """

    def expand(self, elements: beam.PCollection[Any]) -> beam.PCollection[Any]:
        """Adds the step. A worker with other code raises ValueError."""
        check = beam.Map(refuse_other_code, hash_code())
        return elements | check.with_output_types(elements.element_type)


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
    """Returns an element unchanged, after checking that this worker has the launcher's code.

    Args:
        element: Any element of a PCollection.
        launchers: The result of `hash_code` in the launcher.

    Raises:
        ValueError: The code of this worker's process has another hash.
    """
    if hash_code() != launchers:
        raise ValueError(
            f"a worker has other code of this package than the launcher ({hash_code()}, expected"
            f" {launchers}); install the launcher's wheel where workers run, or build their image"
            " anew"
        )
    return element


def _digest(data: bytes) -> str:
    """Returns the hash that names a file of a broadcast."""
    return blake2b(data, digest_size=16).hexdigest()


@lru_cache(maxsize=8)
def _unpack(sent: Broadcast) -> Any:
    """Decodes the value of a broadcast from its data or its file. The last values are cached.

    Raises:
        ValueError: The file is not what the job wrote.
    """
    data = sent.data or sent.folder.read(sent.file_name)
    if _digest(data) != sent.digest:
        raise ValueError(
            f"{sent.folder.locate(sent.file_name)} is not what this job wrote there: somebody else"
            " writes to this folder, or it is damaged; delete the file and run again"
        )
    return _from_json(json.loads(data), sent.kind)


def _to_json(value: Any) -> Any:
    """Returns bytes as hexadecimal text, and a dataclass as the list of its fields."""
    if isinstance(value, bytes):
        return value.hex()
    return [getattr(value, field.name) for field in fields(value)]


def _from_json(data: Any, kind: Any) -> Any:
    """Converts parsed JSON back to a value of the type `kind`; the inverse of `_to_json`."""
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(*map(_from_json, data, _field_types(kind).values()))
    if get_origin(kind) is tuple:
        return tuple(_from_json(item, get_args(kind)[0]) for item in data)
    return bytes.fromhex(data) if kind is bytes else data


_field_types = lru_cache(get_type_hints)
