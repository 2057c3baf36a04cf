"""Writes samples of a PCollection as WebDataset shards; equal samples give equal bytes.

    sample | EncodeSamples | PlanShards (what each shard must hold)
                           | ToShards | GroupByKey | WriteShards | ListShards | FinishDataset

Samples are ordered by the hash of their keys, and each shard holds a range of hashes. What a shard
must hold is counted without the shuffle, and the row about a written shard has a seal. So if a
runner loses, repeats or changes elements, the job ends with an error. Nothing is written before the
pipeline runs.
"""

import gzip
import hashlib
import io
import os
import re
import reprlib
import tarfile
import time
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from typing import Any, NamedTuple
from zlib import crc32

import apache_beam as beam

from pipeline.jobs import metrics
from pipeline.shards.records import json_bytes
from pipeline.shards.shard_file import end_of_tar, pack_member
from pipeline.storage.folder import Folder
from pipeline.storage.local import TEMPORARY_MARK, find_temporaries
from pipeline.storage.secret_values import hide
from pipeline.transforms.input import in_one_window, place_of, refuse_second_writer
from pipeline.transforms.plain_values import to_plain

DEFAULT_NAME = "shard"
MANIFEST = "manifest.json"
WIDS_INDEX = "shards.json"
_FORMAT = "webdataset shards 1"
_COLUMNS = ("name", "samples", "bytes", "sha256")  # of a shard in the manifest
_HASH_BYTES = 16
_CELL_BYTES = 2  # hashes that begin with the same ones are in the same shard
_OTHER = "is of another dataset; give another folder or name, or delete what is there"
_ONE_WRITER = "join the branches by beam.Flatten(), or give each another name= or folder"
_NOTES_OF_WEBDATASET = {"__key__", "__url__", "__local_path__"}
"""Entries that webdataset adds to what it reads; all but the key are left out."""
_OF_TREES = {"json", "jsn", "mp", "msgpack", "msg", "cbor"}
"""Extensions whose values may hold rows."""
_ANY_SHARD = re.compile(r"[\w.-]+-\d{6,}\.tar")
_NOT_IN_NAMES = r"/\\\0\ud800-\udfff"
_ADVICE = "the runner loses, repeats or changes what it delivers: run again, or on another runner"


class Tally(NamedTuple):
    """How many samples there are, the bytes of their members, and the sum of their checksums."""

    samples: int = 0
    num_bytes: int = 0
    checksum: int = 0

    def add(self, other: "Tally") -> "Tally":
        """Both together."""
        return Tally(*(own + others for own, others in zip(self, other, strict=True)))


class Plan(NamedTuple):
    """The first cell of each shard, and what it must hold."""

    firsts: tuple[int, ...] = ()
    expected: tuple[Tally, ...] = ()


@dataclass(frozen=True)
class ShardRule:
    """Where shards `NAME-NNNNNN.tar` go, and how large they are at most."""

    folder: Folder
    name: str
    max_bytes: int
    max_samples: int

    @property
    def manifest(self) -> str:
        """Returns the name of the file that lists the samples, bytes and sha256 of each shard."""
        return self._index_name(MANIFEST)

    @property
    def wids_index(self) -> str:
        """Returns the name of the index that wids reads."""
        return self._index_name(WIDS_INDEX)

    def _index_name(self, name: str) -> str:
        """Returns the file name of an index, which begins with a dataset's name that is no default.

        So several datasets can share a folder.
        """
        return name if self.name == DEFAULT_NAME else f"{self.name}-{name}"

    def shard_name(self, number: int) -> str:
        """Returns the name of a shard's file."""
        return f"{self.name}-{number:06d}.tar"

    def is_shard(self, name: str) -> bool:
        """Returns whether a file's name is a shard's name of this dataset."""
        return re.fullmatch(rf"{re.escape(self.name)}-\d{{6,}}\.tar", name) is not None

    def is_own(self, name: str) -> bool:
        """Returns whether a file is a shard or an index of this dataset."""
        return name in (self.manifest, self.wids_index) or self.is_shard(name)

    def holds(self, tally: Tally) -> bool:
        """Returns whether a shard with this many samples and bytes is within the limits."""
        num_bytes = tally.num_bytes + len(end_of_tar(tally.num_bytes))
        return num_bytes <= self.max_bytes and tally.samples <= self.max_samples


def _seal(row: tuple[object, ...], tally: Tally) -> str:
    """Returns a hash of a shard's row of the manifest and of what the shard must hold."""
    return hashlib.blake2b(repr((row, tuple(tally))).encode(), digest_size=16).hexdigest()


class WriteToWebDataset(
    beam.PTransform[  # type: ignore[misc]
        beam.PCollection[Mapping[str, Any]], beam.PCollection[str]
    ]
):
    """Writes samples as `NAME-000000.tar` ..., then two indexes of them; yields the shards' URLs.

    A sample is a dict of `__key__` and one entry per extension. An entry is bytes, or a value that
    webdataset encodes by that extension; None means no entry. A shard that is there already with
    the same bytes is not written again. Datasets with different names can share a folder.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        name: str = DEFAULT_NAME,
        max_bytes: int = 2**28,
        max_samples: int = 100_000,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes the place and the limits of the shards.

        Args:
            url: The folder, at any fsspec URL.
            name: The beginning of the shards' names. The indexes are manifest.json and shards.json,
                or NAME-manifest.json and NAME-shards.json if this is not the default.
            max_bytes: The largest size of a shard.
            max_samples: The most samples of a shard.
            storage_options: Options of the filesystem.
        """
        super().__init__()
        if not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"name is {name!r}, expected letters, digits, '_', '-' and '.'")
        if min(max_bytes // tarfile.RECORDSIZE, max_samples) < 1:
            raise ValueError(
                f"max_bytes is {max_bytes} and max_samples {max_samples}, expected"
                f" {tarfile.RECORDSIZE} or more and 1 or more"
            )
        folder = Folder(os.fspath(url), storage_options)
        self._rule = ShardRule(folder, name, max_bytes, max_samples)

    def display_data(self) -> dict[str, Any]:
        rule = self._rule
        sizes = {"max_bytes": rule.max_bytes, "max_samples": rule.max_samples}
        return {"url": hide(rule.folder.url), "name": rule.name, **sizes}

    def written_places(self) -> set[str]:
        """Returns the manifest's place: one for each folder and name."""
        return {place_of(self._rule.folder, self._rule.manifest)}

    def expand(self, samples: beam.PCollection[Mapping[str, Any]]) -> beam.PCollection[str]:
        rule = self._rule
        refuse_second_writer(samples.pipeline, self, _ONE_WRITER)
        _refuse_other_dataset(rule)
        encode = beam.Map(encode_sample, rule).with_output_types(bytes)
        encoded = in_one_window(samples, self) | "EncodeSamples" >> encode
        plan = beam.pvalue.AsSingleton(
            encoded | "PlanShards" >> beam.CombineGlobally(_PlanShards(rule))
        )
        return (
            encoded
            | "ToShards" >> beam.Map(to_shard, plan).with_output_types(tuple[int, bytes])
            | beam.GroupByKey()
            | "WriteShards" >> beam.Map(write_shard, plan, rule)
            | "ListShards" >> beam.combiners.ToList()
            | "FinishDataset" >> beam.FlatMap(finish_dataset, plan, rule)
        )


def encode_sample(sample: Mapping[str, Any], rule: ShardRule) -> bytes:
    """Returns the hash of a sample's key, followed by the sample as members of a tar.

    Raises:
        ValueError: The sample has no key, no entry, two entries with one extension, or more bytes
            than a shard; or the key cannot be a file name; or an entry cannot be encoded or read
            back.
    """
    key = sample.get("__key__") if isinstance(sample, Mapping) else None
    if not isinstance(key, str) or not key or re.search(f"[.{_NOT_IN_NAMES}]", key):
        raise ValueError(
            f"a sample's __key__ is {key!r}, expected text that is not empty, without '.', '/' and"
            f" '\\'; the sample is {reprlib.repr(sample)}"
        )
    extensions = [name for name in sorted(sample, key=str) if name not in _NOTES_OF_WEBDATASET]
    _check_extensions(key, extensions)
    members = [
        pack_member(f"{key}.{extension}", _encode_value(key, extension, sample[extension]))
        for extension in extensions
        if sample[extension] is not None
    ]
    encoded = b"".join([hashlib.blake2b(key.encode(), digest_size=_HASH_BYTES).digest(), *members])
    if not members:
        raise ValueError(f"the sample {key!r} is empty: it has no entry besides __key__")
    if not rule.holds(Tally(1, len(encoded) - _HASH_BYTES)):
        raise ValueError(
            f"the sample {key!r} takes {len(encoded):,} bytes, more than a shard of"
            f" max_bytes={rule.max_bytes:,}; give a larger max_bytes"
        )
    return encoded


def _check_extensions(key: str, extensions: Sequence[Any]) -> None:
    """Refuses extensions that cannot be in a tar, or that webdataset would not read back."""
    spelled: dict[str, str] = {}
    for extension in extensions:
        where = f"the sample {key!r}: the extension {extension!r}"
        if not isinstance(extension, str) or not extension:
            raise ValueError(f"{where} is no end of a file's name; expected text such as 'txt'")
        if re.search(f"[{_NOT_IN_NAMES}]", extension):
            raise ValueError(f"{where} is no end of a file's name; expected no '/' and '\\'")
        if extension.startswith("_"):
            raise ValueError(
                f"{where} begins with '_', which webdataset keeps for notes that it does not write;"
                " rename the entry, or leave it out before"
            )
        if key.startswith("__") and extension.endswith("__"):
            raise ValueError(
                f"{where} makes a file {key}.{extension}, which webdataset skips as a note of its"
                " own; give another key or extension"
            )
        other = spelled.setdefault(extension.lower(), extension)
        if other != extension:
            raise ValueError(
                f"{where} is {other!r} in other letters, and webdataset reads both as"
                f" {extension.lower()!r}; rename one of them"
            )


def _encode_value(key: str, extension: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    compressed = extension.lower().endswith(".gz")
    kind = extension.lower().removesuffix(".gz").rpartition(".")[2]
    try:
        if isinstance(value, str):
            data = value.encode()
        else:
            data = bytes(_encoder(kind)(to_plain(value) if kind in _OF_TREES else value))
    except Exception as error:
        raise ValueError(
            f"the sample {key!r}: its {extension!r} is a {type(value).__name__} that cannot be"
            f" encoded ({error}); give bytes, or what webdataset encodes by this extension"
        ) from error
    return gzip.compress(data, mtime=0) if compressed else data


@cache
def _encoder(extension: str) -> Any:
    from webdataset.writer import default_handlers  # imports torch where there is one

    if extension not in default_handlers:
        raise ValueError(f"webdataset encodes no {extension!r}")
    return default_handlers[extension]


def _cell_of(encoded: bytes) -> int:
    return int.from_bytes(encoded[:_CELL_BYTES], "big")


class _PlanShards(beam.CombineFn):  # type: ignore[misc]
    def __init__(self, rule: ShardRule) -> None:
        self._rule = rule

    def create_accumulator(self) -> dict[int, Tally]:
        return {}

    def add_input(self, cells: dict[int, Tally], encoded: bytes) -> dict[int, Tally]:
        cell, own = _cell_of(encoded), Tally(1, len(encoded) - _HASH_BYTES, crc32(encoded))
        cells[cell] = cells.get(cell, Tally()).add(own)
        return cells

    def merge_accumulators(self, accumulators: Iterable[dict[int, Tally]]) -> dict[int, Tally]:
        total: dict[int, Tally] = {}
        for cell, tally in chain.from_iterable(cells.items() for cells in accumulators):
            total[cell] = total.get(cell, Tally()).add(tally)
        return total

    def extract_output(self, cells: dict[int, Tally]) -> Plan:
        return plan_shards(cells, self._rule)


def plan_shards(cells: Mapping[int, Tally], rule: ShardRule) -> Plan:
    """Cells in order, as many to a shard as it has room for.

    Raises:
        ValueError: One has no room in a shard.
    """
    firsts: list[int] = []
    expected: list[Tally] = []
    for cell, tally in sorted(cells.items()):
        if not rule.holds(tally):
            raise ValueError(
                f"{tally.samples} samples of {tally.num_bytes:,} bytes lie in one of the 65,536"
                " ranges of keys that are not cut further, more than a shard of max_bytes="
                f"{rule.max_bytes:,} and max_samples={rule.max_samples:,}; give larger ones"
            )
        if expected and rule.holds(together := expected[-1].add(tally)):
            expected[-1] = together
        else:
            firsts.append(cell)
            expected.append(tally)
    return Plan(tuple(firsts), tuple(expected))


def to_shard(encoded: bytes, plan: Plan) -> tuple[int, bytes]:
    """A sample with the number of its shard."""
    return bisect(plan.firsts, _cell_of(encoded)) - 1, encoded


def write_shard(
    shard: tuple[int, Iterable[bytes]], plan: Plan, rule: ShardRule
) -> tuple[str, int, int, str, str]:
    """Writes a shard, unless it is there; returns its row of the manifest, and the row's seal.

    Raises:
        ValueError: The samples are not the planned ones, two have one key, or another file has the
            shard's name.
    """
    number, samples = shard
    began = time.monotonic()
    name = rule.shard_name(number)
    ordered = sorted(samples)
    num_bytes = sum(map(len, ordered)) - _HASH_BYTES * len(ordered)
    found = Tally(len(ordered), num_bytes, sum(map(crc32, ordered)))
    expected = plan.expected[number] if 0 <= number < len(plan.expected) else Tally()
    if found != expected:
        raise ValueError(f"{name}: the runner delivered {found}, expected {expected}; {_ADVICE}")
    for one, other in pairwise(ordered):
        if one[:_HASH_BYTES] == other[:_HASH_BYTES]:
            raise ValueError(
                f"two samples have the __key__ {_key_of(one)!r}; a key names one sample"
            )
    tar = b"".join([memoryview(encoded)[_HASH_BYTES:] for encoded in ordered])
    tar += end_of_tar(len(tar))
    if rule.folder.exists(name):
        _refuse_other_bytes(rule, name, tar)
    elif rule.folder.exists(rule.manifest):
        raise ValueError(f"{rule.folder.locate(rule.manifest)} {_OTHER}")
    else:
        rule.folder.write(name, tar)
        metrics.count({"shards": 1, "samples": len(ordered), "shard_bytes": len(tar)})
    metrics.observe({"bytes_a_shard": len(tar), "ms_a_shard": 1000 * (time.monotonic() - began)})
    row = name, len(ordered), len(tar), hashlib.sha256(tar).hexdigest()
    return *row, _seal(row, found)


def _refuse_other_bytes(rule: ShardRule, name: str, data: bytes) -> None:
    if rule.folder.read(name) != data:
        raise ValueError(f"{rule.folder.locate(name)} {_OTHER}")


def _key_of(encoded: bytes) -> str:
    with tarfile.open(fileobj=io.BytesIO(encoded[_HASH_BYTES:])) as tar:
        return tar.getnames()[0].partition(".")[0]


def finish_dataset(
    written: Sequence[tuple[Any, ...]], plan: Plan, rule: ShardRule
) -> Iterator[str]:
    """Writes both indexes, unless they are there; yields the URL of each shard.

    Args:
        written: The results of `write_shard` for all shards, in any order.
        plan: What each shard must hold.
        rule: Where the shards are.

    Raises:
        ValueError: There are no samples, a shard was not written once as planned, its row was
            changed by the runner, or other shards of this name are in the folder.
    """
    if not (plan.expected or written):
        raise ValueError(f"{rule.folder.url}: there is no sample to write")
    names = [rule.shard_name(number) for number in range(len(plan.expected))]
    ordered = sorted(written)
    if [row[0] for row in ordered] != names:
        odd = sorted({*names} ^ {row[0] for row in ordered}) or names
        raise ValueError(
            f"{rule.folder.url}: {len(ordered)} shards were written, expected {len(names)}, each"
            f" once; such as {odd[0]}; {_ADVICE}"
        )
    rows = [_open_row(*pair) for pair in zip(ordered, plan.expected, strict=True)]
    files = rule.folder.list()
    lost = [row["name"] for row in rows if files.get(row["name"]) != row["bytes"]]
    if lost:
        raise ValueError(f"{rule.folder.locate(lost[0])} is not there as it was written; run again")
    _refuse_other_shards(rule, sorted(files.keys() - {*names}))
    for name, data in (rule.wids_index, _wids_index(rows)), (rule.manifest, _manifest(rows)):
        if name in files:
            _refuse_other_bytes(rule, name, data)
        else:
            rule.folder.write(name, data)
    rule.folder.remove(_find_own_temporaries(rule, files))
    yield from map(rule.folder.locate, names)


def _open_row(written: tuple[Any, ...], expected: Tally) -> dict[str, Any]:
    """Returns a shard's row of the manifest, after a check of its seal.

    Raises:
        ValueError: The row is not the one that was written, or was written for another plan.
    """
    *row, seal = written
    if len(row) != len(_COLUMNS) or seal != _seal(tuple(row), expected):
        raise ValueError(
            f"{written[0]}: the runner delivered {reprlib.repr(written)} as what was written,"
            f" which is not what its seal says; expected {expected}; {_ADVICE}"
        )
    return dict(zip(_COLUMNS, row, strict=True))


def _find_own_temporaries(rule: ShardRule, names: Iterable[str]) -> list[str]:
    """Returns the temporary files that a killed pipeline with this dataset's name has left."""
    begun = ((name, name.partition(TEMPORARY_MARK)[0][1:]) for name in find_temporaries(names))
    return [name for name, target in begun if rule.is_own(target)]


def _wids_index(rows: Sequence[Mapping[str, Any]]) -> bytes:
    shards = [
        {"url": row["name"], "nsamples": row["samples"], "filesize": row["bytes"]} for row in rows
    ]
    return json_bytes({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards})


def _manifest(rows: Sequence[Mapping[str, Any]]) -> bytes:
    totals = {name: sum(row[name] for row in rows) for name in ("samples", "bytes")}
    return json_bytes({"format": _FORMAT, **totals, "shards": rows})


def _refuse_other_dataset(rule: ShardRule) -> None:
    """Refuses a folder that holds a dataset of another kind, before any work is done."""
    files = rule.folder.list()
    for name in sorted({MANIFEST, rule.manifest} & files.keys()):
        if f'"format": "{_FORMAT}"'.encode() not in rule.folder.read(name):
            raise ValueError(f"{rule.folder.locate(name)} {_OTHER}")
    others = [name for name in files if not _ANY_SHARD.fullmatch(name)]
    _refuse_other_tars(rule, others)


def _refuse_other_shards(rule: ShardRule, names: Iterable[str]) -> None:
    _refuse_other_tars(rule, [name for name in names if rule.is_shard(name)])


def _refuse_other_tars(rule: ShardRule, names: Iterable[str]) -> None:
    others = [name for name in names if re.fullmatch(r"[^/]+\.tar", name)]
    if others:
        raise ValueError(f"{rule.folder.locate(others[0])} {_OTHER}")
