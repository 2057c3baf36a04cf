"""Writes samples of a PCollection as WebDataset shards; equal samples give equal bytes.

    sample | EncodeSamples | ToSizeRows | GroupSizes | PlanRanges | PlanShards   (the plan)
                           | ToShards   | GroupByKey | WriteShards               (reads the plan)
                                                     | ListShards | FinishDataset

Samples are ordered by the hash of their keys, and each shard holds a range of hashes. The plan
(`pipeline.transforms.shard_plan`) says with which hash each shard begins, and how many samples and
bytes it must hold. It is made from the encoded samples before they are shuffled. So the samples
that arrive at WriteShards can be checked by it. What WriteShards returns about a shard has a seal,
which FinishDataset checks. So if a runner loses, repeats or changes elements, the job ends with an
error. Nothing is written before the pipeline runs.

The shard of a sample is known only when all samples have been counted. Until then the runner must
keep the encoded samples, and then it shuffles them. So it moves them twice. If the user gives
`num_shards`, the hashes are divided into that many ranges, and samples are shuffled by range. That
needs no plan, so they are shuffled while they are counted, and moved once. ToRanges then replaces
ToShards, and only WriteShards reads the plan.
"""

import copy
import hashlib
import io
import os
import re
import reprlib
import tarfile
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any
from zlib import crc32

import apache_beam as beam
from apache_beam.transforms.error_handling import ErrorHandler

from pipeline.jobs import metrics
from pipeline.jobs.broadcast import hash_code, refuse_other_code
from pipeline.shards.records import json_bytes
from pipeline.shards.shard_file import end_of_tar
from pipeline.storage.folder import Folder
from pipeline.storage.local import TEMPORARY_MARK, find_temporaries
from pipeline.storage.secret_values import hide
from pipeline.transforms.bundle_output import log_large_bundles
from pipeline.transforms.encoded_samples import (
    DOUBLED_KEY,
    HASH_BYTES,
    BadSampleError,
    RejectedSample,
    decode_sample,
    encode_sample,
    pack_sample,
    tar_bytes,
)
from pipeline.transforms.input import in_one_window, place_of, refuse_second_writer
from pipeline.transforms.shard_plan import (
    DEFAULT_NAME,
    MANIFEST,
    Plan,
    ShardRule,
    Tally,
    plan_range,
    plan_shards,
    shards_of,
    to_range,
    to_shard,
    to_size_row,
)

_FORMAT = "webdataset shards 1"
_COLUMNS = ("name", "samples", "bytes", "sha256")  # of a shard in the manifest
_OTHER = "is of another dataset; give another folder or name, or delete what is there"
_ONE_WRITER = "join the branches by beam.Flatten(), or give each another name= or folder"
_ANY_SHARD = re.compile(r"[\w.-]+-\d{6,}\.tar")
_ADVICE = "the runner loses, repeats or changes what it delivers: run again, or on another runner"
_COMPARED_BYTES = 2**20
_ON_BAD_SAMPLE = ("stop", "reject")
_REJECTED = "rejected"
_KEPT = "kept"
ShardRow = tuple[str, int, int, str, str]
"""Name, samples, bytes and sha256 of a shard, and the seal of its row (`_seal`)."""


def _seal(row: tuple[object, ...], tally: Tally) -> str:
    """Returns a hash of a shard's row of the manifest and of what the shard must hold."""
    return hashlib.blake2b(repr((row, tuple(tally))).encode(), digest_size=16).hexdigest()


class WriteToWebDataset(
    beam.PTransform[  # type: ignore[misc]
        beam.PCollection[Mapping[str, Any]],
        beam.PCollection[str] | dict[str, beam.PCollection[str | RejectedSample]],
    ]
):
    """Writes the samples of a PCollection as WebDataset shards, and two indexes of them.

    The input is a bounded PCollection of samples. A sample is a dict. `"__key__"` is its name, a
    `str` that no other sample has, or an `int`, which is written in decimal. A name may have
    folders, as in `"train/0001"`; after the last `/` it has no `.`, because webdataset would end
    the name there. Every other key is the extension of a file in the shard, and its value is what
    the file holds: `bytes`, `str`, or a value that webdataset encodes by that extension, such as an
    `int` under `"cls"` or a dict under `"json"`. `None` means no file.

    The output is a PCollection of `str`: the URL of each shard, after everything is written. With
    `on_bad_sample="reject"` it is a dict of two PCollections:

    - `"urls"`: the URLs of the shards.
    - `"rejected"`: a `RejectedSample` (`reason`, `key`, `message`, `sample`) for each sample that
      was left out.

    The folder receives `shard-000000.tar` and so on, `shards.json`, which wids reads, and
    `manifest.json`, with the samples, bytes and sha256 of each shard. The bytes of all files depend
    on the samples and the settings alone, not on the order of the samples or on the runner. If the
    same pipeline runs again, it writes only what is missing. No sample at all gives a dataset of no
    shards.

    All samples become one dataset. The windows of the input are ignored, and the URLs are in the
    global window.

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
        *,
        num_shards: int | None = None,
        on_bad_sample: str = "stop",
    ) -> None:
        """Takes the place and the limits of the shards.

        Args:
            url: Path or fsspec URL of the folder.
            name: The beginning of the shards' names. Datasets with different names can share a
                folder. If it is not the default, the names of the indexes begin with it too:
                NAME-manifest.json and NAME-shards.json.
            max_bytes: The largest size of a shard, in bytes.
            max_samples: The most samples of a shard.
            storage_options: Options of the fsspec filesystem, such as keys of an object store. They
                are sent to the workers; of a text `${NAME}` only the name is sent, and it stands
                for that environment variable.
            num_shards: About how many shards there are to be. Give it for a large dataset: the
                samples are then moved between workers once and not twice. A shard that would be
                larger than `max_bytes` or `max_samples` is divided into several. Without it,
                shards are as large as these limits allow.
            on_bad_sample: "stop" ends the job at a sample that cannot be written. "reject" leaves
                it out; of samples with one key it keeps the one with the fewest bytes.

        Raises:
            ValueError: The name has other characters than letters, digits, '_', '-' and '.', a
                limit leaves no room for a sample, num_shards is not positive, or on_bad_sample is
                another word.
        """
        super().__init__()
        if not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"name is {name!r}, expected letters, digits, '_', '-' and '.'")
        if min(max_bytes // tarfile.RECORDSIZE, max_samples) < 1:
            raise ValueError(
                f"max_bytes is {max_bytes} and max_samples {max_samples}, expected"
                f" {tarfile.RECORDSIZE} or more and 1 or more"
            )
        if num_shards is not None and (not isinstance(num_shards, int) or num_shards < 1):
            raise ValueError(f"num_shards is {num_shards!r}, expected an integer from 1, or None")
        if on_bad_sample not in _ON_BAD_SAMPLE:
            expected = " or ".join(map(repr, _ON_BAD_SAMPLE))
            raise ValueError(f"on_bad_sample is {on_bad_sample!r}, expected {expected}")
        folder = Folder(os.fspath(url), storage_options)
        rejects = on_bad_sample == "reject"
        self._rule = ShardRule(folder, name, max_bytes, max_samples, num_shards, rejects)

    def display_data(self) -> dict[str, Any]:
        """Returns the arguments that a runner shows for this transform."""
        rule = self._rule
        shown = {
            "url": hide(rule.folder.url),
            "name": rule.name,
            "max_bytes": rule.max_bytes,
            "max_samples": rule.max_samples,
            "on_bad_sample": _ON_BAD_SAMPLE[rule.rejects],
        }
        return shown | ({"num_shards": rule.num_shards} if rule.num_shards else {})

    def written_places(self) -> set[str]:
        """Returns the URL of the manifest, which stands for all files of the dataset."""
        return {place_of(self._rule.folder, self._rule.manifest)}

    def with_exception_handling(
        self,
        main_tag: str = "good",
        dead_letter_tag: str = "bad",
        *,
        error_handler: ErrorHandler | None = None,
    ) -> beam.PTransform:
        """Returns this transform with an output for bad samples, like Beam's own transforms.

        Args:
            main_tag: The name of the output of URLs.
            dead_letter_tag: The name of the output of bad samples. Its elements are those of Beam:
                (sample, (type of the error, message, lines of a traceback)).
            error_handler: Receives the bad samples. The transform then has a single output, the
                URLs. None for two outputs.
        """
        rejecting = copy.copy(self)
        rejecting._rule = replace(self._rule, rejects=True)
        apart = _WithDeadLetters(rejecting, main_tag, dead_letter_tag, error_handler)
        return self.label >> apart

    def with_error_handler(self, error_handler: ErrorHandler | None) -> beam.PTransform:
        """Returns this transform, so that it gives bad samples to an error handler of Beam.

        Args:
            error_handler: Receives the bad samples; with None, this transform is returned as it is.
        """
        if error_handler is None:
            return self
        return self.with_exception_handling(error_handler=error_handler)

    def expand(self, samples: beam.PCollection[Mapping[str, Any]]) -> Any:
        """Adds the steps that write the dataset to the pipeline of the samples.

        Beam calls this when the transform is applied. The files in the folder are checked then, but
        nothing is written before the pipeline runs.

        Returns:
            The URLs of the shards, or a dict with the outputs "urls" and "rejected" if bad samples
            are rejected.

        Raises:
            ValueError: The PCollection is unbounded, another transform of the pipeline writes the
                same dataset, or the folder holds another dataset.
        """
        rule = self._rule
        refuse_second_writer(samples.pipeline, self, _ONE_WRITER)
        _refuse_other_dataset(rule)
        encode = beam.ParDo(EncodeSamples(rule)).with_output_types(bytes)
        encoded, not_encoded = _apply(in_one_window(samples, self), "EncodeSamples", encode, rule)
        encoded = log_large_bundles(encoded, len)
        plan = beam.pvalue.AsSingleton(
            encoded
            | "ToSizeRows" >> beam.Map(to_size_row, rule).with_output_types(tuple[int, bytes])
            | "GroupSizes" >> beam.GroupByKey()
            | "PlanRanges" >> beam.Map(plan_range, rule)
            | "ListRanges" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "PlanShards" >> beam.Map(plan_shards, rule)
        )
        if rule.num_shards:
            to_group = "ToRanges" >> beam.Map(to_range, rule).with_output_types(tuple[int, bytes])
        else:
            to_group = "ToShards" >> beam.Map(to_shard, plan).with_output_types(tuple[int, bytes])
        write = beam.ParDo(WriteShards(rule), plan).with_output_types(ShardRow)
        groups = encoded | to_group | beam.GroupByKey()
        written, not_written = _apply(groups, "WriteShards", write, rule)
        urls = (
            written
            | "ListShards" >> beam.combiners.ToList()
            | "FinishDataset" >> beam.FlatMap(finish_dataset, plan, rule)
        )
        if not rule.rejects:
            return urls
        rejected = (not_encoded, not_written) | "Rejected" >> beam.Flatten()
        return {"urls": urls, "rejected": rejected}


def _apply(
    elements: beam.PCollection, label: str, step: beam.ParDo, rule: ShardRule
) -> tuple[beam.PCollection, beam.PCollection | None]:
    """Applies a step that may reject samples.

    If samples are not rejected, the step gets a single output without a tag, because not every
    runner delivers outputs with tags.

    Args:
        elements: The input of the step.
        label: The name of the step.
        step: Yields rejected samples as outputs with the tag `_REJECTED`.
        rule: Says whether samples are rejected.

    Returns:
        The output of the step, and the rejected samples, or None if the rule rejects none.
    """
    if not rule.rejects:
        return elements | label >> step, None
    outputs = elements | label >> step.with_outputs(_REJECTED, main=_KEPT)
    return outputs[_KEPT], outputs[_REJECTED]


class _WithDeadLetters(beam.PTransform):  # type: ignore[misc]
    """Applies `WriteToWebDataset`, and gives its outputs the names and elements that Beam has.

    The arguments of the constructor are those of `WriteToWebDataset.with_exception_handling`, after
    the transform itself, which must reject bad samples.
    """

    def __init__(
        self,
        transform: WriteToWebDataset,
        main_tag: str,
        dead_letter_tag: str,
        error_handler: ErrorHandler | None,
    ) -> None:
        super().__init__()
        self._transform = transform
        self._main_tag = main_tag
        self._dead_letter_tag = dead_letter_tag
        self._error_handler = error_handler

    def expand(self, samples: beam.PCollection[Mapping[str, Any]]) -> Any:
        """Adds the steps of the transform, and a step that converts the rejected samples.

        Returns:
            The URLs if there is an error handler, and otherwise a dict of both outputs by tag.
        """
        written = samples | self._transform
        errors = written["rejected"] | "ToDeadLetters" >> beam.Map(to_dead_letter)
        if self._error_handler is None:
            return {self._main_tag: written["urls"], self._dead_letter_tag: errors}
        self._error_handler.add_error_pcollection(errors)
        return written["urls"]


def to_dead_letter(rejected: RejectedSample) -> tuple[Any, tuple[type, str, list[str]]]:
    """Returns a rejected sample in the form of Beam: (sample, (class, message, traceback lines)).

    The class is `BadSampleError`. There are no traceback lines.
    """
    return rejected.sample, (BadSampleError, rejected.message, [])


class _OfSameCode(beam.DoFn):  # type: ignore[misc]
    """A step that first checks that its worker has the launcher's code.

    Beam's `setup` makes the check once in each worker process. A step of its own
    (`RefuseOtherCode`) would take time for every sample. Before WriteShards it would also send all
    samples through a worker once more: runners end a stage before a step that reads a side input,
    and what passes from stage to stage leaves the worker and comes back.
    """

    def __init__(self, rule: ShardRule) -> None:
        """Keeps the rule, and the hash of the code of this process, which is the launcher.

        Args:
            rule: What the step needs of the settings.
        """
        self._rule = rule
        self._code = hash_code()

    def setup(self) -> None:
        """Raises ValueError if this worker has other code of this package than the launcher."""
        refuse_other_code(None, self._code)


class EncodeSamples(_OfSameCode):
    """Encodes samples (`encode_or_reject`)."""

    def process(self, sample: Mapping[str, Any]) -> Iterator[Any]:
        """Yields what `encode_or_reject` yields for a sample."""
        return encode_or_reject(sample, self._rule)


class WriteShards(_OfSameCode):
    """Writes the shards of groups of samples (`write_group`)."""

    def process(self, group: tuple[int, Iterable[bytes]], plan: Plan) -> Iterator[Any]:
        """Yields what `write_group` yields for a group."""
        return write_group(group, plan, self._rule)


def encode_or_reject(sample: Mapping[str, Any], rule: ShardRule) -> Iterator[Any]:
    """Yields an encoded sample (`encode_sample`), or a `RejectedSample` with the tag `_REJECTED`.

    Raises:
        BadSampleError: The sample cannot be encoded, and `rule.rejects` is false.
    """
    try:
        encoded = encode_sample(sample, rule.max_bytes)
    except BadSampleError as error:
        if not rule.rejects:
            raise
        yield _reject(RejectedSample(error.reason, error.key, str(error), sample))
    else:
        metrics.observe({"bytes_a_sample": tar_bytes(encoded)})
        yield encoded


def _reject(rejected: RejectedSample) -> beam.pvalue.TaggedOutput:
    """Counts a sample that is left out, and returns it as a tagged output."""
    metrics.count({f"rejected_{rejected.reason}": 1})
    return beam.pvalue.TaggedOutput(_REJECTED, rejected)


def write_group(group: tuple[int, Iterable[bytes]], plan: Plan, rule: ShardRule) -> Iterator[Any]:
    """Writes the shards of a group of samples, unless they are there.

    Args:
        group: The number of the group (`shards_of`), and its encoded samples in any order. All of
            them are held in memory.
        plan: What each shard must hold.
        rule: Where the shards are written.

    Yields:
        For each shard, what `write_shard` returns. If the rule rejects samples, also a
        `RejectedSample` with the tag `_REJECTED` for each sample whose key another sample has.

    Raises:
        ValueError: The samples are not the planned ones, two samples have the same key, or a
            different file has the shard's name already.
    """
    number, samples = group
    ordered = sorted(samples)
    if rule.rejects:
        ordered, doubled = _keep_first(ordered)
        yield from map(_reject, doubled)
    numbers = shards_of(number, plan, rule)
    if not numbers:
        raise ValueError(
            f"{rule.folder.url}: the runner delivered {len(ordered)} samples of group {number},"
            f" expected none; {_ADVICE}"
        )
    hashes = [encoded[:HASH_BYTES] for encoded in ordered]
    # All shards of the group but the first begin at the first hash that the plan names.
    later_firsts = plan.firsts[numbers.start + 1 : numbers.stop]
    bounds = [0, *(bisect_left(hashes, first) for first in later_firsts), len(ordered)]
    for shard, (begin, end) in zip(numbers, pairwise(bounds), strict=True):
        yield write_shard(shard, ordered[begin:end], plan, rule)


def _keep_first(ordered: Sequence[bytes]) -> tuple[list[bytes], list[RejectedSample]]:
    """Chooses one sample for each key: the one with the fewest bytes.

    Args:
        ordered: Encoded samples in the order of their hashes.

    Returns:
        The samples to write, in the same order, and the samples that are left out.
    """
    kept: list[bytes] = []
    doubled: list[RejectedSample] = []
    for _, same in groupby(ordered, key=lambda encoded: encoded[:HASH_BYTES]):
        first, *others = sorted(same, key=_order_of_doubled)
        kept.append(first)
        for encoded in others:
            sample = decode_sample(encoded)
            key = sample["__key__"]
            doubled.append(RejectedSample(DOUBLED_KEY, key, _describe_doubled(key), sample))
    return kept, doubled


def _order_of_doubled(encoded: bytes) -> tuple[int, int, bytes]:
    """Returns what encoded samples of one key are sorted by: the first one is written.

    The order must be that of their size rows (`to_size_row`), because the plan counts the first of
    those.
    """
    return tar_bytes(encoded), crc32(encoded), encoded


def _describe_doubled(key: str) -> str:
    """Returns the message about two samples that have the same key."""
    return f"two samples have the __key__ {key!r}; a key names one sample"


def write_shard(number: int, ordered: Sequence[bytes], plan: Plan, rule: ShardRule) -> ShardRow:
    """Writes a shard, unless a file with the same bytes is there already.

    Args:
        number: The shard's number.
        ordered: Its encoded samples in the order of their hashes.
        plan: What each shard must hold.
        rule: Where the shard is written.

    Returns:
        The name of the shard, its number of samples, its size in bytes, its sha256, and a seal. The
        first four are the shard's row of the manifest. The seal is a hash of this row and of what
        the shard must hold, so that `finish_dataset` notices a row that the runner changed.

    Raises:
        ValueError: The samples are not the planned ones, two samples have the same key, or a
            different file has the shard's name already.
    """
    began = time.monotonic()
    name = rule.shard_name(number)
    num_bytes = sum(map(tar_bytes, ordered))
    delivered = Tally(len(ordered), num_bytes, sum(map(crc32, ordered)))
    expected = plan.expected[number] if 0 <= number < len(plan.expected) else Tally()
    if delivered != expected:
        raise ValueError(
            f"{name}: the runner delivered {delivered}, expected {expected}; {_ADVICE}"
        )
    for sample, following in pairwise(ordered):
        if sample[:HASH_BYTES] == following[:HASH_BYTES]:
            raise ValueError(_describe_doubled(decode_sample(sample)["__key__"]))
    tar = _pack_tar(ordered)
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


def _pack_tar(ordered: Iterable[bytes]) -> bytes:
    """Returns a tar of encoded samples, in this order."""
    stream = io.BytesIO()
    for encoded in ordered:
        stream.writelines(pack_sample(encoded))
    stream.write(end_of_tar(stream.tell()))
    return stream.getvalue()


def _refuse_other_bytes(rule: ShardRule, name: str, data: bytes) -> None:
    """Raises ValueError if the file `name` holds other bytes than `data`.

    The file is read in ranges, so that it is not held in memory beside `data`.
    """
    size = len(data)

    def is_same_from(start: int) -> bool:
        stop = min(start + _COMPARED_BYTES, size)
        return rule.folder.read_range(name, start, stop) == data[start:stop]

    is_same = rule.folder.size(name) == size and all(
        is_same_from(start) for start in range(0, size, _COMPARED_BYTES)
    )
    if not is_same:
        raise ValueError(f"{rule.folder.locate(name)} {_OTHER}")


def finish_dataset(
    written: Sequence[tuple[Any, ...]], plan: Plan, rule: ShardRule
) -> Iterator[str]:
    """Writes both indexes, unless they are there; yields the URL of each shard.

    Args:
        written: The results of `write_shard` for all shards, in any order.
        plan: What each shard must hold.
        rule: Where the shards are.

    Raises:
        ValueError: A shard was not written once as planned, its row was changed by the runner, or
            other shards of this name are in the folder.
    """
    names = [rule.shard_name(number) for number in range(len(plan.expected))]
    ordered = sorted(written, key=lambda row: (len(row[0]), row))  # numbers may have seven digits
    written_names = [row[0] for row in ordered]
    if written_names != names:
        missing_or_unplanned = sorted({*names} ^ {*written_names})
        examples = missing_or_unplanned or names  # if there are none, a shard was written twice
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
    # The manifest is last: it says that the dataset is complete.
    indexes = {rule.wids_index: _wids_index(rows), rule.manifest: _manifest(rows)}
    for name, data in indexes.items():
        if name in files:
            _refuse_other_bytes(rule, name, data)
        else:
            rule.folder.write(name, data)
    rule.folder.remove(_find_own_temporaries(rule, files))
    yield from map(rule.folder.locate, names)


def _open_row(written: tuple[Any, ...], expected: Tally) -> dict[str, Any]:
    """Checks the seal of what `write_shard` returned.

    Args:
        written: The row of the manifest, and the seal at the end.
        expected: What the plan says that the shard holds.

    Returns:
        The row of the manifest, with the names of its columns.

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
    """Chooses the temporary files of this dataset that a killed pipeline left in the folder.

    Args:
        rule: Says which names the files of this dataset have.
        names: Names of all files in the folder.
    """
    own = []
    for name in find_temporaries(names):
        target = name.partition(TEMPORARY_MARK)[0].removeprefix(".")  # the file it would become
        if rule.is_own(target):
            own.append(name)
    return own


def _wids_index(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Returns the content of the index that wids reads, made of the manifest's rows of shards."""
    shards = [
        {"url": row["name"], "nsamples": row["samples"], "filesize": row["bytes"]} for row in rows
    ]
    return json_bytes({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards})


def _manifest(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Returns the content of the manifest, made of the rows of all shards."""
    totals = {name: sum(row[name] for row in rows) for name in ("samples", "bytes")}
    return json_bytes({"format": _FORMAT, **totals, "shards": rows})


def _refuse_other_dataset(rule: ShardRule) -> None:
    """Raises ValueError if the folder holds a dataset that was not made by `WriteToWebDataset`.

    Such a dataset has another manifest, or tars with names that no dataset's shards have.
    """
    files = rule.folder.list()
    for name in sorted({MANIFEST, rule.manifest} & files.keys()):
        if f'"format": "{_FORMAT}"'.encode() not in rule.folder.read(name):
            raise ValueError(f"{rule.folder.locate(name)} {_OTHER}")
    others = [name for name in files if not _ANY_SHARD.fullmatch(name)]
    _refuse_other_tars(rule, others)


def _refuse_other_shards(rule: ShardRule, names: Iterable[str]) -> None:
    """Raises ValueError if a shard of this dataset is among files that the plan does not name."""
    _refuse_other_tars(rule, [name for name in names if rule.is_shard(name)])


def _refuse_other_tars(rule: ShardRule, names: Iterable[str]) -> None:
    """Raises ValueError if one of some files is a tar in the folder itself.

    Tars in subfolders are allowed.

    Args:
        rule: Names the folder, for the message.
        names: Paths, relative to the folder, of files that do not belong to the dataset.
    """
    others = [name for name in names if re.fullmatch(r"[^/]+\.tar", name)]
    if others:
        raise ValueError(f"{rule.folder.locate(others[0])} {_OTHER}")
