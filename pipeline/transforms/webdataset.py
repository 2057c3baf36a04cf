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
_CELL_BYTES = 2  # samples whose hashes begin with the same bytes are in the same shard
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
    """The size of a set of samples.

    Attributes:
        samples: Number of samples.
        num_bytes: Bytes that their members take in a tar, with headers and padding but without the
            zero blocks that end the tar.
        checksum: Sum of the crc32 of the encoded samples.
    """

    samples: int = 0
    num_bytes: int = 0
    checksum: int = 0

    def add(self, other: "Tally") -> "Tally":
        """Returns the tally of both sets together."""
        return Tally(
            self.samples + other.samples,
            self.num_bytes + other.num_bytes,
            self.checksum + other.checksum,
        )


class Plan(NamedTuple):
    """The division of all samples into shards.

    A sample's cell is a number from 0 to 65,535: the first bytes of the hash of its key. Each shard
    holds the samples of a range of cells.

    Attributes:
        firsts: The first cell of each shard, ascending.
        expected: What each shard must hold.
    """

    firsts: tuple[int, ...] = ()
    expected: tuple[Tally, ...] = ()


@dataclass(frozen=True)
class ShardRule:
    """Decides where the shards `NAME-NNNNNN.tar` are written, and how large they may be.

    Attributes:
        folder: The folder of the shards.
        name: The beginning of their names.
        max_bytes: The largest size of a shard.
        max_samples: The most samples of a shard.
    """

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
        """Returns the file name of an index of this dataset.

        It begins with the dataset's name, so that several datasets can share a folder. The dataset
        with the default name has plain names.
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
    """Writes the samples of a PCollection as WebDataset shards, and two indexes of them.

    The input is a bounded PCollection of samples. A sample is a dict. `"__key__"` is its name, a
    `str` that no other sample has. Every other key is the extension of a file in the shard, and its
    value is what the file holds: `bytes`, `str`, or a value that webdataset encodes by that
    extension, such as an `int` under `"cls"` or a dict under `"json"`. `None` means no file.

    The output is a PCollection of `str`: the URL of each shard, after everything is written.

    The folder receives `shard-000000.tar` and so on, `shards.json`, which wids reads, and
    `manifest.json`, with the samples, bytes and sha256 of each shard. The bytes of all files depend
    on the samples alone, not on their order or on the runner. If the same pipeline runs again, it
    writes only what is missing.

    Raises:
        ValueError: When the transform is applied, the PCollection is unbounded, another transform
            writes there, or the folder holds another dataset. While the pipeline runs, a sample
            cannot be written, two samples have the same key, or the runner lost or repeated
            samples.

    Examples:
        ```python
        import apache_beam as beam

        from pipeline import WriteToWebDataset

        samples = [{"__key__": f"sample-{n}", "txt": f"Text {n}.", "cls": n % 2} for n in range(9)]

        with beam.Pipeline() as pipeline:
            urls = pipeline | beam.Create(samples) | WriteToWebDataset("samples", max_samples=4)
            urls | beam.Map(print)
        ```
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
            url: Path or fsspec URL of the folder.
            name: The beginning of the shards' names. Datasets with different names can share a
                folder. If it is not the default, the names of the indexes begin with it too:
                NAME-manifest.json and NAME-shards.json.
            max_bytes: The largest size of a shard, in bytes.
            max_samples: The most samples of a shard.
            storage_options: Options of the fsspec filesystem, such as keys of an object store.

        Raises:
            ValueError: The name has other characters than letters, digits, '_', '-' and '.', or a
                limit leaves no room for a sample.
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
        """Returns the arguments that a runner shows for this transform."""
        rule = self._rule
        sizes = {"max_bytes": rule.max_bytes, "max_samples": rule.max_samples}
        return {"url": hide(rule.folder.url), "name": rule.name, **sizes}

    def written_places(self) -> set[str]:
        """Returns the URL of the manifest, which stands for all files of the dataset."""
        return {place_of(self._rule.folder, self._rule.manifest)}

    def expand(self, samples: beam.PCollection[Mapping[str, Any]]) -> beam.PCollection[str]:
        """Adds the steps to the pipeline of the samples; looks into the folder, writes nothing.

        Raises:
            ValueError: The PCollection is unbounded, another transform of the pipeline writes the
                same dataset, or the folder holds another dataset.
        """
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
    """Returns the hash of a sample's key (16 bytes), followed by the sample as members of a tar.

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
    """Refuses extensions that cannot be in a tar, or that webdataset would not read back.

    Args:
        key: Key of the sample.
        extensions: All extensions of the sample, of any type.

    Raises:
        ValueError: There is such an extension, or two differ only in capitals.
    """
    spelled: dict[str, str] = {}  # each extension, by its lower-case form
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
    """Returns the bytes of an entry. Other values than bytes are encoded by the extension.

    Raises:
        ValueError: The value cannot be encoded by this extension.
    """
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
    """Returns webdataset's function that encodes values by an extension.

    Raises:
        ValueError: There is none.
    """
    from webdataset.writer import default_handlers  # imports torch if it is installed

    if extension not in default_handlers:
        raise ValueError(f"webdataset encodes no {extension!r}")
    return default_handlers[extension]


def _cell_of(encoded: bytes) -> int:
    """Returns the number of the cell of an encoded sample, from the hash of its key.

    `Plan` says which cells go into which shard.
    """
    return int.from_bytes(encoded[:_CELL_BYTES], "big")


class _PlanShards(beam.CombineFn):  # type: ignore[misc]
    """Adds up the tally of each cell over all encoded samples, and plans shards by these."""

    def __init__(self, rule: ShardRule) -> None:
        self._rule = rule

    def create_accumulator(self) -> dict[int, Tally]:
        """Returns an empty dict of tallies by cell, before any sample is added."""
        return {}

    def add_input(self, cells: dict[int, Tally], encoded: bytes) -> dict[int, Tally]:
        """Adds a sample to the tallies, in place, and returns them."""
        cell = _cell_of(encoded)
        tally = Tally(1, len(encoded) - _HASH_BYTES, crc32(encoded))
        cells[cell] = cells.get(cell, Tally()).add(tally)
        return cells

    def merge_accumulators(self, accumulators: Iterable[dict[int, Tally]]) -> dict[int, Tally]:
        """Returns the sums of the tallies of several workers."""
        total: dict[int, Tally] = {}
        for cell, tally in chain.from_iterable(cells.items() for cells in accumulators):
            total[cell] = total.get(cell, Tally()).add(tally)
        return total

    def extract_output(self, cells: dict[int, Tally]) -> Plan:
        """Returns the plan for the tallies of all samples."""
        return plan_shards(cells, self._rule)


def plan_shards(cells: Mapping[int, Tally], rule: ShardRule) -> Plan:
    """Divides the cells into shards, in order, with as many in each as it has room for.

    Args:
        cells: What each cell holds; cells without samples are left out.
        rule: How large a shard may be.

    Raises:
        ValueError: A cell is too large for a shard. Cells are not divided further.
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
        if expected and rule.holds(expected[-1].add(tally)):
            expected[-1] = expected[-1].add(tally)
        else:
            firsts.append(cell)
            expected.append(tally)
    return Plan(tuple(firsts), tuple(expected))


def to_shard(encoded: bytes, plan: Plan) -> tuple[int, bytes]:
    """Returns the number of a sample's shard, and the encoded sample."""
    return bisect(plan.firsts, _cell_of(encoded)) - 1, encoded


def write_shard(
    shard: tuple[int, Iterable[bytes]], plan: Plan, rule: ShardRule
) -> tuple[str, int, int, str, str]:
    """Writes a shard, unless it is there; returns its row of the manifest, and the row's seal.

    Args:
        shard: The shard's number, and its encoded samples in any order.
        plan: What each shard must hold.
        rule: Where the shard is written.

    Returns:
        (name of the shard, number of samples, size in bytes, sha256, seal of these four).

    Raises:
        ValueError: The samples are not the planned ones, two have one key, or another file has the
            shard's name.
    """
    number, samples = shard
    began = time.monotonic()
    name = rule.shard_name(number)
    ordered = sorted(samples)
    num_bytes = sum(map(len, ordered)) - _HASH_BYTES * len(ordered)
    delivered = Tally(len(ordered), num_bytes, sum(map(crc32, ordered)))
    expected = plan.expected[number] if 0 <= number < len(plan.expected) else Tally()
    if delivered != expected:
        raise ValueError(
            f"{name}: the runner delivered {delivered}, expected {expected}; {_ADVICE}"
        )
    for sample, following in pairwise(ordered):
        if sample[:_HASH_BYTES] == following[:_HASH_BYTES]:
            raise ValueError(
                f"two samples have the __key__ {_key_of(sample)!r}; a key names one sample"
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
    row = (name, len(ordered), len(tar), hashlib.sha256(tar).hexdigest())
    return *row, _seal(row, delivered)


def _refuse_other_bytes(rule: ShardRule, name: str, data: bytes) -> None:
    """Raises ValueError if the file `name` holds other bytes than `data`."""
    if rule.folder.read(name) != data:
        raise ValueError(f"{rule.folder.locate(name)} {_OTHER}")


def _key_of(encoded: bytes) -> str:
    """Returns the key of an encoded sample."""
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
        examples = sorted({*names} ^ {row[0] for row in ordered}) or names
        raise ValueError(
            f"{rule.folder.url}: {len(ordered)} shards were written, expected {len(names)}, each"
            f" once; such as {examples[0]}; {_ADVICE}"
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
    """Checks the checksum that came with a shard's row of the manifest, and returns the row.

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
    """Returns the index that wids reads, of the rows of all shards."""
    shards = [
        {"url": row["name"], "nsamples": row["samples"], "filesize": row["bytes"]} for row in rows
    ]
    return json_bytes({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards})


def _manifest(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Returns the manifest, of the rows of all shards."""
    totals = {name: sum(row[name] for row in rows) for name in ("samples", "bytes")}
    return json_bytes({"format": _FORMAT, **totals, "shards": rows})


def _refuse_other_dataset(rule: ShardRule) -> None:
    """Raises ValueError if a folder holds a dataset of another kind, before any work is done."""
    files = rule.folder.list()
    for name in sorted({MANIFEST, rule.manifest} & files.keys()):
        if f'"format": "{_FORMAT}"'.encode() not in rule.folder.read(name):
            raise ValueError(f"{rule.folder.locate(name)} {_OTHER}")
    others = [name for name in files if not _ANY_SHARD.fullmatch(name)]
    _refuse_other_tars(rule, others)


def _refuse_other_shards(rule: ShardRule, names: Iterable[str]) -> None:
    """Raises ValueError if one of these files is named like a shard of this dataset."""
    _refuse_other_tars(rule, [name for name in names if rule.is_shard(name)])


def _refuse_other_tars(rule: ShardRule, names: Iterable[str]) -> None:
    """Raises ValueError if one of these files is a tar, directly in the folder."""
    others = [name for name in names if re.fullmatch(r"[^/]+\.tar", name)]
    if others:
        raise ValueError(f"{rule.folder.locate(others[0])} {_OTHER}")
