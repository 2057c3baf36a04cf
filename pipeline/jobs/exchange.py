"""Bringing the encoded documents of each bucket together, in two modes with one result.

`files`: each task reads its bucket's range of every token part. `shuffle`: each token part is read
once and cut at the buckets' bounds, and Beam's GroupByKey moves the pieces: the bytes of all
documents that one part holds of one bucket, behind the part's name. What a bucket must hold travels
in its tasks (pipeline.tokens.buckets).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Literal

import apache_beam as beam
import numpy as np

from pipeline.jobs.broadcast import Broadcast, CreateElements, broadcast
from pipeline.shards.manifest import shard_name
from pipeline.storage.folder import Folder
from pipeline.tokens.buckets import Bucket, BucketContents, BucketFinder
from pipeline.tokens.dropped_ids import read_dropped_ids
from pipeline.tokens.token_index import (
    TokenParts,
    join_ranges,
    read_bucket,
    read_part_rows,
    read_tokens,
)
from pipeline.tokens.token_parts import TokenizedDocument, unpack_documents

ExchangeMode = Literal["files", "shuffle"]
_NAME_BYTES = 2
_MAX_GROUP_BYTES = 512 * 10**6
_GROUP_COPIES = 2  # in a worker: as the runner delivers a group, and gathered
_RUNNER_ADVICE = (
    "the runner loses or repeats what it shuffles: run again with --exchange files, or on another"
    " runner"
)


@dataclass(frozen=True)
class ShardTask:
    """One shard to build."""

    seq_len: int
    pass_index: int
    bucket: Bucket
    contents: BucketContents

    @property
    def name(self) -> str:
        """The shard's path relative to the dataset."""
        return shard_name(self.bucket.split, self.seq_len, self.pass_index, self.bucket.number)


def refuse_large_groups(tasks: Iterable[ShardTask], token_dtype: str) -> None:
    """Raises ValueError where a shuffle brings more together than a worker carries.

    A bucket of at most 128 MiB of text is some 70 MB of tokens; fewer buckets are a user's.
    """

    def weigh(task: ShardTask) -> int:
        seal, rows = task.contents.seal, task.contents.rows
        return seal.tokens * np.dtype(token_dtype).itemsize * rows // max(1, seal.documents)

    largest = max(tasks, key=weigh)
    contents, num_bytes = largest.contents, weigh(largest)
    if num_bytes > _MAX_GROUP_BYTES:
        raise ValueError(
            f"the bucket {largest.bucket.name} is {num_bytes / 1e6:,.0f} MB of tokens"
            f" ({contents.rows:,} rows, {contents.seal.documents:,} distinct documents): a shuffle"
            " brings it as one group, which takes its worker some"
            f" {_GROUP_COPIES * num_bytes / 1e9:,.1f} GB, expected at most"
            f" {_MAX_GROUP_BYTES / 1e6:,.0f} MB; give --exchange files, which reads copies one"
            " after the other, or leave --num_buckets out"
        )


class ExchangeByBucket(
    beam.PTransform[  # type: ignore[misc]
        beam.pvalue.PBegin, beam.PCollection[tuple[list[ShardTask], Iterable[TokenizedDocument]]]
    ]
):
    """The start of a graph: pairs (tasks of one bucket, an iterable of its documents)."""

    def __init__(
        self,
        mode: ExchangeMode,
        tokens: TokenParts,
        part_names: Sequence[str],
        tasks: Sequence[ShardTask],
        folder: Folder,
    ) -> None:
        super().__init__()
        self._mode, self._tokens, self._folder = mode, tokens, folder
        self._part_names, self._tasks = tuple(part_names), tasks

    def display_data(self) -> dict[str, str | int]:
        return {"mode": self._mode, "parts": len(self._part_names), "tasks": len(self._tasks)}

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        if self._mode == "files":
            tasks = pipeline | "Tasks" >> CreateElements(self._tasks, self._folder)
            names = broadcast(self._part_names, self._folder)
            return tasks | "FindDocuments" >> beam.Map(find_documents, self._tokens, names)
        buckets = broadcast(group_tasks(self._tasks), self._folder)
        return (
            pipeline
            | "TokenParts" >> CreateElements(self._part_names, self._folder)
            | "CutParts"
            >> beam.FlatMap(cut_for_tasks, self._tokens, buckets).with_output_types(
                tuple[bytes, bytes]
            )
            | beam.GroupByKey()
            | "UnpackGroups" >> beam.Map(unpack_group, self._tokens, buckets)
        )


class RefuseRepeats(
    beam.PTransform[beam.PCollection[tuple[str, str]], beam.PCollection[None]]  # type: ignore[misc]
):
    """The end of a graph that shuffles: (bucket, shard) of finished shards, none of them twice.

    What a failed attempt of a bundle gave is not in the collection.
    """

    def expand(self, finished: beam.PCollection) -> beam.PCollection:
        return (
            finished
            | "Names" >> beam.MapTuple(_encode_names).with_output_types(tuple[bytes, bytes])
            | beam.GroupByKey()
            | "RefuseRepeats" >> beam.MapTuple(refuse_repeats)
        )


def _encode_names(bucket: str, shard: str) -> tuple[bytes, bytes]:
    return shard.encode(), bucket.encode()


def refuse_repeats(shard: bytes, buckets: Iterable[bytes]) -> None:
    """Raises ValueError for a shard that several groups were delivered for."""
    bucket, *others = buckets
    if others:
        raise ValueError(
            f"bucket {bucket.decode()}: the runner delivered it {1 + len(others)} times for"
            f" {shard.decode()}, expected once; {_RUNNER_ADVICE}"
        )


def plan_tasks(
    buckets: Sequence[Bucket],
    seq_lens: Sequence[int],
    passes: int,
    contents: Mapping[str, BucketContents],
) -> list[ShardTask]:
    """Every shard of the dataset, passes in order; validation has pass 0 only."""
    places = _places(buckets, seq_lens, passes)
    return [ShardTask(*place, contents[place[-1].name]) for place in places]


def plan_names(buckets: Sequence[Bucket], seq_lens: Sequence[int], passes: int) -> list[str]:
    """The names of the shards that `plan_tasks` plans."""
    return [
        shard_name(bucket.split, seq_len, index, bucket.number)
        for seq_len, index, bucket in _places(buckets, seq_lens, passes)
    ]


def _places(
    buckets: Sequence[Bucket], seq_lens: Sequence[int], passes: int
) -> Iterator[tuple[int, int, Bucket]]:
    for pass_index, seq_len, bucket in product(range(passes), seq_lens, buckets):
        if bucket.split == "train" or pass_index == 0:
            yield seq_len, pass_index, bucket


@dataclass(frozen=True)
class BucketTasks:
    """All tasks of one bucket: a million tasks are too many objects for every worker."""

    bucket: Bucket
    contents: BucketContents
    places: tuple[tuple[int, int], ...]  # length and pass of each


def group_tasks(tasks: Iterable[ShardTask]) -> tuple[BucketTasks, ...]:
    """Tasks by their buckets, which ascend by id."""
    found: dict[Bucket, list[ShardTask]] = {}
    for task in sorted(tasks, key=lambda task: task.bucket.first_id):
        found.setdefault(task.bucket, []).append(task)
    return tuple(
        BucketTasks(bucket, own[0].contents, tuple((each.seq_len, each.pass_index) for each in own))
        for bucket, own in found.items()
    )


@dataclass(frozen=True)
class StoredDocuments:
    """The documents of one bucket, copies included, read from token parts when it is iterated."""

    tokens: TokenParts
    part_names: tuple[str, ...]
    bucket: Bucket

    advice = "they and their index are of different runs, or damaged: delete that folder, run again"

    @property
    def origin(self) -> str:
        """Begins the sentence that says what came."""
        return f"the token parts in {self.tokens.folder.url} hold"

    def __iter__(self) -> Iterator[TokenizedDocument]:
        return read_bucket(self.tokens, self.part_names, self.bucket)


@dataclass(frozen=True)
class GroupedDocuments:
    """The documents of one bucket, unpacked from what GroupByKey gathered when it is iterated.

    Documents of dropped.ids are left out here: a part would have to read all of that file.
    """

    bucket: Bucket
    chunks: Iterable[bytes]
    tokens: TokenParts

    origin, advice = "the runner delivered", _RUNNER_ADVICE

    def __iter__(self) -> Iterator[TokenizedDocument]:
        seen: set[str] = set()
        dropped = self._read_dropped()
        for chunk in self.chunks:
            part, data = unpack_chunk(chunk)
            if part in seen:
                said = f"{self.origin} what part {part} holds of it twice, expected once"
                raise ValueError(f"bucket {self.bucket.name}: {said}; {self.advice}")
            seen.add(part)
            where = f"bucket {self.bucket.name}, part {part}"
            found = unpack_documents(data, self.tokens.token_dtype, where)
            yield from (document for document in found if document.id not in dropped)

    def _read_dropped(self) -> frozenset[bytes]:
        # What is held out is not dropped.
        if not self.tokens.has_dropped or self.bucket.split == "validation":
            return frozenset()
        return read_dropped_ids(self.tokens.folder, self.bucket.first_id, self.bucket.last_id)


DeliveredDocuments = StoredDocuments | GroupedDocuments
"""`origin` begins the sentence that says what came, `advice` what to do where it is wrong."""


def find_documents(
    task: ShardTask, tokens: TokenParts, part_names: Broadcast
) -> tuple[list[ShardTask], StoredDocuments]:
    """A task and its bucket's documents; nothing is read yet."""
    return [task], StoredDocuments(tokens, part_names.get(), task.bucket)


def cut_for_tasks(
    name: str, tokens: TokenParts, buckets: Broadcast
) -> Iterator[tuple[bytes, bytes]]:
    """What a token part holds of each bucket that shards are built of."""
    return cut_part(name, tokens, [found.bucket for found in buckets.get()])


def cut_part(
    name: str, tokens: TokenParts, buckets: Sequence[Bucket]
) -> Iterator[tuple[bytes, bytes]]:
    """The bytes of the documents that a token part holds of each bucket, by the bucket's name.

    One request reads the part. What dropped.ids leaves out is among them (`GroupedDocuments`).
    """
    rows = read_part_rows(tokens.folder, f"{name}.index")
    finder = BucketFinder(buckets, tokens.held_out)
    owners = finder.find(rows)
    rows, owners = rows[owners != finder.none], owners[owners != finder.none]
    if not len(rows):
        return
    start, stop = int(rows["offset"][0]), int(rows["offset"][-1]) + int(rows["size"][-1])
    data = memoryview(read_tokens(tokens.folder, f"{name}.tokens", start, stop))
    order = np.argsort(owners, kind="stable")
    for chosen in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
        ranges = join_ranges(rows[chosen])
        documents = b"".join(data[first - start : last - start] for first, last in ranges)
        yield buckets[int(owners[chosen[0]])].name.encode(), pack_chunk(name, documents)


def pack_chunk(part: str, data: bytes) -> bytes:
    """What a part holds of a bucket, behind the part's name."""
    name = part.encode()
    return len(name).to_bytes(_NAME_BYTES, "little") + name + data


def unpack_chunk(chunk: bytes) -> tuple[str, memoryview]:
    """The part's name and the documents that `pack_chunk` packed, which are not copied."""
    end = _NAME_BYTES + int.from_bytes(chunk[:_NAME_BYTES], "little")
    return chunk[_NAME_BYTES:end].decode(errors="replace"), memoryview(chunk)[end:]


def unpack_group(
    group: tuple[bytes, Iterable[bytes]], tokens: TokenParts, buckets: Broadcast
) -> tuple[list[ShardTask], GroupedDocuments]:
    """The tasks of a bucket and its documents; nothing is unpacked yet."""
    name, chunks = group
    if (own := _by_name(buckets).get(name)) is None:
        said = f"the runner delivered a bucket {name.decode()} that no shard is built of"
        raise ValueError(f"{said}; {_RUNNER_ADVICE}")
    tasks = [ShardTask(*place, own.bucket, own.contents) for place in own.places]
    return tasks, GroupedDocuments(own.bucket, chunks, tokens)


@lru_cache(maxsize=1)
def _by_name(buckets: Broadcast) -> dict[bytes, BucketTasks]:
    return {each.bucket.name.encode(): each for each in buckets.get()}
