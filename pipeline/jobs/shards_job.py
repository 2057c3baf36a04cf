"""The shards job makes shards of encoded documents: one per split, length, pass and bucket.

    ExchangeByBucket | ShardBuilder.build

After a shard is written, its record is written under _tasks/ (pipeline.jobs.shard_records). A later
launch does not build a shard again that has a record.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import apache_beam as beam
import numpy as np

from pipeline.instances.build_bucket import (
    BucketDocuments,
    InstanceRule,
    build_bucket,
    count_source_tokens,
    gather_documents,
)
from pipeline.jobs import metrics, worker_guard
from pipeline.jobs.exchange import (
    DeliveredDocuments,
    ExchangeByBucket,
    ExchangeMode,
    RefuseRepeats,
    ShardTask,
    refuse_large_groups,
)
from pipeline.jobs.run_beam import Outputs, choose_exchange, pipeline_options, run_graph
from pipeline.jobs.shard_records import ShardRecord, format_record, read_record, record_name
from pipeline.shards.growing import RECORDS
from pipeline.shards.seal import seal_documents
from pipeline.shards.shard_file import pack_shard
from pipeline.storage.folder import Folder
from pipeline.tokens.buckets import BucketContents
from pipeline.tokens.token_index import TokenParts

worker_guard.watch_in_workers()


@dataclass(frozen=True)
class ShardBuilder:
    """Builds the shards of a bucket on a worker.

    Attributes:
        output: The folder of the dataset.
        rules: The rule by which instances are made, for each length.
        num_sources: Number of sources. If there are several, tokens are counted by source.
        settings_hash: Hash of the dataset's settings, which every record of a shard has.
    """

    output: Folder
    rules: Mapping[int, InstanceRule]
    num_sources: int
    settings_hash: str

    def build(
        self, tasks: Sequence[ShardTask], documents: DeliveredDocuments
    ) -> Iterator[tuple[str, str]]:
        """Writes a bucket's shards that are not finished; yields (bucket's name, shard's name).

        A runner may deliver the same bucket again. Then its documents are checked again, but its
        finished shards are not built again.

        Args:
            tasks: The shards to build of the bucket.
            documents: The documents that were delivered as those of the bucket.

        Raises:
            ValueError: The documents are not those that the bucket must have.
        """
        gathered = gather_documents(documents)
        seal = seal_documents(gathered.ids, len(gathered.tokens))
        delivered = BucketContents(seal, gathered.rows, gathered.checksum)
        metrics.observe({"documents_a_bucket": seal.documents})
        # Every task is checked before any shard is written.
        for task in tasks:
            if delivered != task.contents:
                raise ValueError(
                    f"bucket {task.bucket.name}: {documents.origin} {delivered}, expected"
                    f" {task.contents}; {documents.advice}"
                )
        for task in tasks:
            if not self._is_finished(task):
                self._write_shard(task, gathered)
            yield task.bucket.name, task.name

    def _is_finished(self, task: ShardTask) -> bool:
        """Returns whether the shard is there, with a valid record and of the size it says."""
        seal = task.contents.seal
        record = read_record(self.output, task.name, seal, self.settings_hash)
        if record is None or not self.output.exists(task.name):
            return False
        return self.output.size(task.name) == record.shard.num_bytes

    def _write_shard(self, task: ShardTask, documents: BucketDocuments) -> None:
        """Builds and writes one shard of these documents, then its record."""
        rule = self.rules[task.seq_len]
        if task.bucket.split == "validation":  # has every document once
            rule = dataclasses.replace(rule, weights=())
        blocks = build_bucket(documents, rule, task.pass_index, task.bucket.name)
        source_tokens = np.zeros(self.num_sources, np.int64)
        if self.num_sources > 1:
            # It is lazy: the numbers are complete when `pack_shard` has taken all blocks.
            blocks = count_source_tokens(blocks, documents, source_tokens)
        tar, shard, table = pack_shard(
            blocks,
            task.bucket.split,
            task.seq_len,
            task.pass_index,
            task.name,
            rule.masking.mask_id,
            task.contents.seal,
        )
        if self.num_sources > 1:
            shard = dataclasses.replace(shard, source_tokens=tuple(source_tokens.tolist()))
        self.output.write(task.name, tar)
        record = format_record(ShardRecord(self.settings_hash, shard, table))
        self.output.write(record_name(task.name), record)
        metrics.count({"shards": 1, "instances": shard.instances, "shard_bytes": shard.num_bytes})


def run_shards_job(
    builder: ShardBuilder,
    tokens: TokenParts,
    part_names: Sequence[str],
    tasks: Sequence[ShardTask],
    exchange: Literal["auto", "files", "shuffle"],
    outputs: Outputs,
    workers: int,
    beam_arguments: Sequence[str],
) -> None:
    """Builds the shards of some tasks.

    Does nothing if there are no tasks. This happens if an earlier launch built all shards and was
    killed before it wrote the manifest.

    Args:
        builder: Builds the shards of a bucket.
        tokens: How to read the token parts.
        part_names: Names of the token parts.
        tasks: The shards to build.
        exchange: How the documents of a bucket are brought together (`choose_exchange`).
        outputs: Counts the shards for the display of progress.
        workers: The number of local worker processes.
        beam_arguments: The user's arguments for Beam.

    Raises:
        ValueError: An option is unknown, or a group is too large for a shuffle.
    """
    if not tasks:
        return
    # A task builds a shard, or in a shuffle first reads a token part.
    most_tasks = max(len(tasks), len(part_names))
    options = pipeline_options(workers, beam_arguments, most_tasks)
    mode = choose_exchange(exchange, options)
    if mode == "shuffle":
        refuse_large_groups(tasks, tokens.token_dtype)

    def build(pipeline: beam.Pipeline) -> None:
        add_shards_graph(pipeline, builder, tokens, part_names, tasks, mode)

    run_graph("shards", build, options, outputs)


def add_shards_graph(
    pipeline: beam.Pipeline,
    builder: ShardBuilder,
    tokens: TokenParts,
    part_names: Sequence[str],
    tasks: Sequence[ShardTask],
    mode: ExchangeMode,
) -> None:
    """Adds the whole shards job to a pipeline. The arguments are those of `run_shards_job`."""
    finished = (
        pipeline
        | ExchangeByBucket(mode, tokens, part_names, tasks, builder.output / RECORDS)
        | "BuildShards" >> beam.FlatMapTuple(builder.build)
    )
    if mode == "shuffle":
        _ = finished | RefuseRepeats()
