"""Samples of a PCollection as WebDataset shards, whose bytes are a function of the samples alone.

    sample | EncodeSamples | PlanShards (what each shard must hold)
                           | ToShards | GroupByKey | WriteShards | ListShards | FinishDataset

Samples are ordered by the hash of their keys, and each shard holds a range of the hashes. What it
must hold is counted apart from the shuffle: a runner that loses, repeats or changes what it
delivers ends the job.
"""

import gzip
import hashlib
import io
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
from apache_beam.transforms.window import GlobalWindows

from pipeline.jobs import metrics
from pipeline.shards.records import json_bytes
from pipeline.shards.shard_file import end_of_tar, pack_member
from pipeline.storage.folder import Folder
from pipeline.storage.secret_values import hide

MANIFEST = "manifest.json"
WIDS_INDEX = "shards.json"
_FORMAT = "webdataset shards 1"
_COLUMNS = ("name", "samples", "bytes", "sha256")  # of a shard in manifest.json
_HASH_BYTES = 16
_CELL_BYTES = 2  # hashes that begin with the same ones are in the same shard
_OTHER = "is of another dataset; give another folder, or delete what lies there"
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

    def shard_name(self, number: int) -> str:
        """The file of a shard."""
        return f"{self.name}-{number:06d}.tar"

    def holds(self, tally: Tally) -> bool:
        """Whether a shard has room for so much."""
        num_bytes = tally.num_bytes + len(end_of_tar(tally.num_bytes))
        return num_bytes <= self.max_bytes and tally.samples <= self.max_samples


class WriteToWebDataset(
    beam.PTransform[beam.PCollection[dict[str, Any]], beam.PCollection[str]]  # type: ignore[misc]
):
    """Writes samples as `NAME-000000.tar` ..., then shards.json and manifest.json; yields URLs.

    A sample is a dict: `__key__`, and an entry an extension, bytes or what webdataset encodes by
    that extension. Shards that are there already with the same bytes are not written again.
    """

    def __init__(
        self,
        url: str,
        name: str = "shard",
        max_bytes: int = 2**28,
        max_samples: int = 100_000,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Keeps the folder, at any fsspec URL, how names begin, and the most that a shard holds."""
        super().__init__()
        if not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"name is {name!r}, expected letters, digits, '_', '-' and '.'")
        if min(max_bytes // tarfile.RECORDSIZE, max_samples) < 1:
            raise ValueError(
                f"max_bytes is {max_bytes} and max_samples {max_samples}, expected"
                f" {tarfile.RECORDSIZE} or more and 1 or more"
            )
        self._rule = ShardRule(Folder(url, storage_options), name, max_bytes, max_samples)

    def display_data(self) -> dict[str, Any]:
        rule = self._rule
        sizes = {"max_bytes": rule.max_bytes, "max_samples": rule.max_samples}
        return {"url": hide(rule.folder.url), "name": rule.name, **sizes}

    def expand(self, samples: beam.PCollection[dict[str, Any]]) -> beam.PCollection[str]:
        rule = self._rule
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


def in_one_window(
    elements: beam.PCollection[Any], transform: beam.PTransform
) -> beam.PCollection[Any]:
    """Without the windows that a pipeline may have made.

    Raises:
        ValueError: The elements never end.
    """
    if not elements.is_bounded:
        raise ValueError(f"{transform.label}: what comes never ends; give a bounded PCollection")
    return elements | "InOneWindow" >> beam.WindowInto(GlobalWindows())


def encode_sample(sample: Mapping[str, Any], rule: ShardRule) -> bytes:
    """The hash of a sample's key, then the sample as members of a tar.

    Raises:
        ValueError: It has no key, one that is no file name, no entry, one that cannot be encoded,
            or more bytes than a shard.
    """
    key = sample.get("__key__") if isinstance(sample, Mapping) else None
    if not isinstance(key, str) or not key or re.search("[./\\\\\0\ud800-\udfff]", key):
        raise ValueError(
            f"a sample's __key__ is {key!r}, expected text that is not empty, without '.', '/' and"
            f" '\\'; the sample is {reprlib.repr(sample)}"
        )
    members = [
        pack_member(f"{key}.{extension}", _encode_value(key, extension, sample[extension]))
        for extension in sorted(sample, key=str)
        if not str(extension).startswith("_") and sample[extension] is not None
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


def _encode_value(key: str, extension: Any, value: Any) -> bytes:
    if not isinstance(extension, str) or not extension or "/" in extension:
        raise ValueError(
            f"the sample {key!r}: the extension {extension!r} is no end of a file's name"
        )
    if isinstance(value, bytes):
        return value
    try:
        kind = extension.removesuffix(".gz")
        encode = str.encode if isinstance(value, str) else _encoder(kind.rpartition(".")[2])
        data = encode(value)
    except Exception as error:
        raise ValueError(
            f"the sample {key!r}: its {extension!r} is a {type(value).__name__} that cannot be"
            f" encoded ({error}); give bytes, or what webdataset encodes by this extension"
        ) from error
    return data if kind == extension else gzip.compress(data, mtime=0)


@cache
def _encoder(extension: str) -> Any:
    from webdataset.writer import default_handlers  # imports torch where there is one

    return default_handlers[extension.lower()]


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
) -> tuple[str, int, int, str]:
    """Writes a shard, unless it is there; returns its row of manifest.json.

    Raises:
        ValueError: The samples are not those of the plan, two have one key, or another file is
            there.
    """
    number, samples = shard
    began, name = time.monotonic(), rule.shard_name(number)
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
    elif rule.folder.exists(MANIFEST):
        raise ValueError(f"{rule.folder.locate(MANIFEST)} {_OTHER}")
    else:
        rule.folder.write(name, tar)
        metrics.count({"shards": 1, "samples": len(ordered), "shard_bytes": len(tar)})
    metrics.observe({"bytes_a_shard": len(tar), "ms_a_shard": 1000 * (time.monotonic() - began)})
    return name, len(ordered), len(tar), hashlib.sha256(tar).hexdigest()


def _refuse_other_bytes(rule: ShardRule, name: str, data: bytes) -> None:
    if rule.folder.read(name) != data:
        raise ValueError(f"{rule.folder.locate(name)} {_OTHER}")


def _key_of(encoded: bytes) -> str:
    with tarfile.open(fileobj=io.BytesIO(encoded[_HASH_BYTES:])) as tar:
        return tar.getnames()[0].partition(".")[0]


def finish_dataset(
    written: Sequence[tuple[str, int, int, str]], plan: Plan, rule: ShardRule
) -> Iterator[str]:
    """Writes shards.json and manifest.json, unless they are there; yields the URL of each shard.

    Raises:
        ValueError: There are no samples, a shard was not written once, or other shards lie in the
            folder.
    """
    if not (plan.expected or written):
        raise ValueError(f"{rule.folder.url}: there is no sample to write")
    rows = [dict[str, Any](zip(_COLUMNS, shard, strict=True)) for shard in sorted(written)]
    names = [rule.shard_name(number) for number in range(len(plan.expected))]
    if [row["name"] for row in rows] != names:
        odd = sorted({*names} ^ {row["name"] for row in rows}) or names
        raise ValueError(
            f"{rule.folder.url}: {len(rows)} shards were written, expected {len(names)}, each"
            f" once; such as {odd[0]}; {_ADVICE}"
        )
    files = rule.folder.list()
    if lost := [row["name"] for row in rows if files.get(row["name"]) != row["bytes"]]:
        raise ValueError(f"{rule.folder.locate(lost[0])} is not there as it was written; run again")
    _refuse_other_files(rule, sorted(files.keys() - {*names}))
    for name, data in (WIDS_INDEX, _wids_index(rows)), (MANIFEST, _manifest(rows)):
        if name in files:
            _refuse_other_bytes(rule, name, data)
        else:
            rule.folder.write(name, data)
    yield from map(rule.folder.locate, names)


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
    if MANIFEST in files and f'"format": "{_FORMAT}"'.encode() not in rule.folder.read(MANIFEST):
        raise ValueError(f"{rule.folder.locate(MANIFEST)} {_OTHER}")
    own = re.compile(rf"{re.escape(rule.name)}-\d{{6,}}\.tar")
    _refuse_other_files(rule, [name for name in files if not own.fullmatch(name)])


def _refuse_other_files(rule: ShardRule, names: Iterable[str]) -> None:
    if others := [name for name in names if re.fullmatch(r"[^/]+\.tar", name)]:
        raise ValueError(f"{rule.folder.locate(others[0])} {_OTHER}")
