"""Brings the encoded documents of each bucket together, in one of two ways with the same result.

Token parts are the files of encoded documents. Each has documents of many buckets. A bucket is the
documents of one split whose ids are in a range. One shard is built of it for every length and pass.

- With `files`, the worker that builds a shard reads the documents of the bucket from every token
  part.
- With `shuffle`, each token part is read once and cut into chunks, one for each bucket of which it
  has documents. Beam's GroupByKey brings the chunks of a bucket together.

Each `ShardTask` says which documents its bucket must hold (pipeline.tokens.buckets). A worker
compares them with the documents that it got, so that it notices if some were lost or repeated.
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
_GROUP_COPIES = 2  # a worker holds a group as the runner delivers it, and gathered
_RUNNER_ADVICE = (
    "the runner loses or repeats what it shuffles: run again with --exchange files, or on another"
    " runner"
)


@dataclass(frozen=True)
class ShardTask:
    """One shard to build.

    Attributes:
        seq_len: Length of its instances.
        pass_index: Number of its pass, from 0.
        bucket: The bucket of its documents.
        contents: What the bucket must hold.
    """

    seq_len: int
    pass_index: int
    bucket: Bucket
    contents: BucketContents

    @property
    def name(self) -> str:
        """Path of the shard, relative to the dataset."""
        return shard_name(self.bucket.split, self.seq_len, self.pass_index, self.bucket.number)


def refuse_large_groups(tasks: Iterable[ShardTask], token_dtype: str) -> None:
    """Refuses buckets that are too large for one group of a shuffle.

    Buckets hold at most 128 MiB of text, some 70 MB of tokens, unless the user asks for fewer
    buckets or many documents have copies.

    Args:
        tasks: All tasks; at least one.
        token_dtype: Type of a stored token, as numpy names it.

    Raises:
        ValueError: The largest bucket has more bytes of tokens, copies included, than a worker can
            take.
    """

    def weigh(task: ShardTask) -> int:
        seal = task.contents.seal
        rows = task.contents.rows
        return seal.tokens * np.dtype(token_dtype).itemsize * rows // max(1, seal.documents)

    largest = max(tasks, key=weigh)
    contents = largest.contents
    num_bytes = weigh(largest)
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
    """Starts a graph with elements (tasks of one bucket, an iterable of the bucket's documents).

    With `shuffle`, a bucket has one element with all its tasks. With `files`, every task has an
    element of its own.
    """

    def __init__(
        self,
        mode: ExchangeMode,
        tokens: TokenParts,
        part_names: Sequence[str],
        tasks: Sequence[ShardTask],
        folder: Folder,
    ) -> None:
        """Keeps the arguments.

        Args:
            mode: "files" or "shuffle".
            tokens: How to read the token parts.
            part_names: Names of the token parts.
            tasks: The shards to build.
            folder: Receives a file for each list that is too long for the job's description
                (`broadcast`).
        """
        super().__init__()
        self._mode = mode
        self._tokens = tokens
        self._folder = folder
        self._part_names = tuple(part_names)
        self._tasks = tasks

    def display_data(self) -> dict[str, str | int]:
        """Returns the mode and the sizes that a runner shows for this transform."""
        return {"mode": self._mode, "parts": len(self._part_names), "tasks": len(self._tasks)}

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        """Adds the stages that the mode needs to a pipeline."""
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
    """Raises an error if a runner delivered a bucket twice, so that a shard was finished twice.

    The elements are (bucket's name, shard's name) of finished shards. If a bundle fails and the
    runner tries it again, only the attempt that succeeds gives elements. So retries do not count as
    repeats.
    """

    def expand(self, finished: beam.PCollection) -> beam.PCollection:
        """Adds the stages that group the elements by shard and check each group."""
        return (
            finished
            | "Names" >> beam.MapTuple(_encode_names).with_output_types(tuple[bytes, bytes])
            | beam.GroupByKey()
            | "RefuseRepeats" >> beam.MapTuple(refuse_repeats)
        )


def _encode_names(bucket: str, shard: str) -> tuple[bytes, bytes]:
    """Returns the shard's name as the key of a group and the bucket's name as its value."""
    return shard.encode(), bucket.encode()


def refuse_repeats(shard: bytes, buckets: Iterable[bytes]) -> None:
    """Checks that a shard was finished once.

    Args:
        shard: Name of the shard.
        buckets: Name of its bucket, once for each time that the shard was finished.

    Raises:
        ValueError: The shard was finished several times, as the runner delivered its bucket again.
    """
    bucket, *repeats = buckets
    if repeats:
        raise ValueError(
            f"bucket {bucket.decode()}: the runner delivered it {1 + len(repeats)} times for"
            f" {shard.decode()}, expected once; {_RUNNER_ADVICE}"
        )


def plan_tasks(
    buckets: Sequence[Bucket],
    seq_lens: Sequence[int],
    passes: int,
    contents: Mapping[str, BucketContents],
) -> list[ShardTask]:
    """Returns the tasks of all shards of a dataset, pass after pass.

    Validation shards are built for pass 0 only.

    Args:
        buckets: All buckets, of both splits.
        seq_lens: Lengths of instances.
        passes: Number of passes.
        contents: What each bucket must hold, by its name.
    """
    return [
        ShardTask(seq_len, pass_index, bucket, contents[bucket.name])
        for seq_len, pass_index, bucket in _places(buckets, seq_lens, passes)
    ]


def plan_names(buckets: Sequence[Bucket], seq_lens: Sequence[int], passes: int) -> list[str]:
    """Returns the names of the shards that `plan_tasks` plans, in the same order."""
    return [
        shard_name(bucket.split, seq_len, pass_index, bucket.number)
        for seq_len, pass_index, bucket in _places(buckets, seq_lens, passes)
    ]


def _places(
    buckets: Sequence[Bucket], seq_lens: Sequence[int], passes: int
) -> Iterator[tuple[int, int, Bucket]]:
    """Yields (length of its instances, number of its pass, bucket) of every shard, pass by pass."""
    for pass_index, seq_len, bucket in product(range(passes), seq_lens, buckets):
        if bucket.split == "train" or pass_index == 0:
            yield seq_len, pass_index, bucket


@dataclass(frozen=True)
class BucketTasks:
    """All tasks of one bucket, in a form that takes little memory.

    Every worker holds all tasks of a job, which may be a million. So the bucket and its contents
    are stored once, and not in a `ShardTask` for each shard.

    Attributes:
        bucket: The bucket.
        contents: What the bucket must hold.
        places: (length of instances, number of the pass) of each task.
    """

    bucket: Bucket
    contents: BucketContents
    places: tuple[tuple[int, int], ...]


def group_tasks(tasks: Iterable[ShardTask]) -> tuple[BucketTasks, ...]:
    """Groups tasks by their buckets. The groups are in the order of the buckets' first ids."""
    by_bucket: dict[Bucket, list[ShardTask]] = {}
    for task in sorted(tasks, key=lambda task: task.bucket.first_id):
        by_bucket.setdefault(task.bucket, []).append(task)

    groups = []
    for bucket, bucket_tasks in by_bucket.items():
        places = tuple((task.seq_len, task.pass_index) for task in bucket_tasks)
        groups.append(BucketTasks(bucket, bucket_tasks[0].contents, places))
    return tuple(groups)


@dataclass(frozen=True)
class StoredDocuments:
    """The documents of one bucket, copies included. Every iteration reads them from token parts.

    Attributes:
        tokens: How to read the token parts.
        part_names: Names of the token parts.
        bucket: The bucket.
        advice: What the user should do if these are not the documents that the bucket must hold;
            the end of an error message.
    """

    tokens: TokenParts
    part_names: tuple[str, ...]
    bucket: Bucket

    advice = (
        "they and their index are of different builds, or damaged: delete that folder, run again"
    )

    @property
    def origin(self) -> str:
        """Beginning of an error message: "the token parts in FOLDER hold".

        The caller appends which documents it has found.
        """
        return f"the token parts in {self.tokens.folder.url} hold"

    def __iter__(self) -> Iterator[TokenizedDocument]:
        """Reads and yields the documents."""
        return read_bucket(self.tokens, self.part_names, self.bucket)


@dataclass(frozen=True)
class GroupedDocuments:
    """The documents of one bucket, copies included, in the chunks that GroupByKey brought together.

    Iteration unpacks the chunks. It leaves out the documents that are listed in dropped.ids. This
    is not done when a token part is cut into chunks: for one bucket a range of dropped.ids is read,
    but for a token part, which has documents of all buckets, the whole file would have to be read.

    Attributes:
        bucket: The bucket.
        chunks: The chunks of the bucket, one from each token part that has documents of it
            (`pack_chunk`).
        tokens: How to read dropped.ids and the chunks.
        origin: Beginning of an error message, to which the caller appends which documents it has
            found.
        advice: What the user should do if these are not the documents that the bucket must hold;
            the end of an error message.
    """

    bucket: Bucket
    chunks: Iterable[bytes]
    tokens: TokenParts

    origin = "the runner delivered"
    advice = _RUNNER_ADVICE

    def __iter__(self) -> Iterator[TokenizedDocument]:
        """Unpacks and yields the documents.

        Raises:
            ValueError: A chunk is damaged, or the runner delivered one twice.
        """
        seen: set[str] = set()
        dropped = self._read_dropped()
        for chunk in self.chunks:
            part, data = unpack_chunk(chunk)
            if part in seen:
                raise ValueError(
                    f"bucket {self.bucket.name}: {self.origin} what part {part} holds of it twice,"
                    f" expected once; {self.advice}"
                )
            seen.add(part)
            where = f"bucket {self.bucket.name}, part {part}"
            documents = unpack_documents(data, self.tokens.token_dtype, where)
            yield from (document for document in documents if document.id not in dropped)

    def _read_dropped(self) -> frozenset[bytes]:
        """Returns the ids in dropped.ids that are in the bucket's range; none for validation."""
        # Validation documents are chosen among those that are not dropped.
        if not self.tokens.has_dropped or self.bucket.split == "validation":
            return frozenset()
        return read_dropped_ids(self.tokens.folder, self.bucket.first_id, self.bucket.last_id)


DeliveredDocuments = StoredDocuments | GroupedDocuments
"""The documents of one bucket, as one of the two modes delivers them."""


def find_documents(
    task: ShardTask, tokens: TokenParts, part_names: Broadcast
) -> tuple[list[ShardTask], StoredDocuments]:
    """Returns a list of only this task, and the documents of its bucket.

    Nothing is read before the documents are iterated over.

    Args:
        task: The task.
        tokens: How to read the token parts.
        part_names: Names of the token parts, a tuple that was sent by `broadcast`.
    """
    return [task], StoredDocuments(tokens, part_names.get(), task.bucket)


def cut_for_tasks(
    name: str, tokens: TokenParts, buckets: Broadcast
) -> Iterator[tuple[bytes, bytes]]:
    """Cuts a token part into chunks, one for each bucket of which shards are still to be built.

    Args:
        name: The name of the part.
        tokens: How to read the part.
        buckets: The result of `group_tasks`, sent by `broadcast`.

    Yields:
        (bucket's name, chunk). A bucket of which the part has no documents is left out.
    """
    return cut_part(name, tokens, [tasks.bucket for tasks in buckets.get()])


def cut_part(
    name: str, tokens: TokenParts, buckets: Sequence[Bucket]
) -> Iterator[tuple[bytes, bytes]]:
    """Cuts a token part into chunks, one for each of the buckets that it has documents of.

    One request reads the part's tokens. Documents in dropped.ids are not left out here;
    `GroupedDocuments` does that.

    Args:
        name: The name of the part.
        tokens: The token parts of the build, among them this one.
        buckets: All buckets of the job. Documents that are in none of them are left out.

    Yields:
        The name of the bucket, in UTF-8, and the chunk: the part's documents of this bucket, as
            `pack_chunk` packs them.

    Raises:
        FileNotFoundError: The part or its index is missing.
        ValueError: The index of the part is damaged.
    """
    rows = read_part_rows(tokens.folder, f"{name}.index")
    finder = BucketFinder(buckets, tokens.held_out)
    owners = finder.find(rows)  # [D] position of each document's bucket in `buckets`
    has_bucket = owners != finder.none
    rows = rows[has_bucket]
    owners = owners[has_bucket]
    if not len(rows):
        return

    start = int(rows["offset"][0])
    stop = int(rows["offset"][-1]) + int(rows["size"][-1])
    data = memoryview(read_tokens(tokens.folder, f"{name}.tokens", start, stop))
    order = np.argsort(owners, kind="stable")
    for chosen in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
        ranges = join_ranges(rows[chosen])
        documents = b"".join(data[first - start : last - start] for first, last in ranges)
        yield buckets[int(owners[chosen[0]])].name.encode(), pack_chunk(name, documents)


def pack_chunk(part: str, data: bytes) -> bytes:
    """Returns a chunk: the length of a token part's name, the name, and the bytes of documents.

    Args:
        part: The name of the part.
        data: The bytes of the documents, as the part stores them.
    """
    name = part.encode()
    return len(name).to_bytes(_NAME_BYTES, "little") + name + data


def unpack_chunk(chunk: bytes) -> tuple[str, memoryview]:
    """Returns the part's name and the bytes of documents that `pack_chunk` packed.

    The bytes are a view of the chunk.
    """
    end = _NAME_BYTES + int.from_bytes(chunk[:_NAME_BYTES], "little")
    return chunk[_NAME_BYTES:end].decode(errors="replace"), memoryview(chunk)[end:]


def unpack_group(
    group: tuple[bytes, Iterable[bytes]], tokens: TokenParts, buckets: Broadcast
) -> tuple[list[ShardTask], GroupedDocuments]:
    """Returns the tasks of a bucket, and its documents.

    Nothing is unpacked before the documents are iterated over.

    Args:
        group: (bucket's name, its chunks), an element that GroupByKey made.
        tokens: How to read dropped.ids and the chunks.
        buckets: The result of `group_tasks`, sent by `broadcast`.

    Raises:
        ValueError: No bucket has this name.
    """
    name, chunks = group
    bucket_tasks = _by_name(buckets).get(name)
    if bucket_tasks is None:
        raise ValueError(
            f"the runner delivered a bucket {name.decode()} that no shard is built of;"
            f" {_RUNNER_ADVICE}"
        )
    bucket = bucket_tasks.bucket
    tasks = [
        ShardTask(seq_len, pass_index, bucket, bucket_tasks.contents)
        for seq_len, pass_index in bucket_tasks.places
    ]
    return tasks, GroupedDocuments(bucket, chunks, tokens)


@lru_cache(maxsize=1)
def _by_name(buckets: Broadcast) -> dict[bytes, BucketTasks]:
    """Returns a mapping from the name of a bucket, as bytes, to the tasks of the bucket.

    Args:
        buckets: The result of `group_tasks`, sent by `broadcast`.
    """
    return {tasks.bucket.name.encode(): tasks for tasks in buckets.get()}
