"""What terabytes ask of the launcher: its bookkeeping alone, on a store of 30 ms a request.

    python -m scripts.bench.launcher_scale [--terabytes 1] [--documents 100000000] [--latency_ms 30]

The store is a filesystem in this process. It makes the first bytes of the input, the indexes of the
token parts and the records of parts and shards out of nothing, sleeps at every request, and counts
them; a listing is a request for each thousand names. The launcher's own code runs on it: the input
is listed and cut, both graphs are described, all indexes are read twice, every shard is published.
Only the jobs are left out. It prints a table of each stage's seconds, requests, memory and size of
the job's description beside their bounds, a JSON line, and ends with 1 where a bound is broken.
Seconds and memory grow with the documents and shards: their bounds are those of one terabyte, times
the terabytes.
"""

import argparse
import gc
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import apache_beam as beam
import fsspec
import numpy as np
from fsspec import AbstractFileSystem

from pipeline.jobs.broadcast import ELEMENTS_PER_FILE
from pipeline.jobs.exchange import ShardTask
from pipeline.jobs.run_beam import Outputs, pipeline_options
from pipeline.jobs.shard_records import ShardRecord, format_record, record_name
from pipeline.jobs.shards_job import ShardBuilder, add_shards_graph
from pipeline.jobs.tokens_job import add_tokens_graph
from pipeline.settings import BuildSettings
from pipeline.shards.block import TOKENS_PER_BLOCK, block_instances
from pipeline.shards.records import BlockTable, Shard
from pipeline.stages import build_shards
from pipeline.stages.build_shards import choose_buckets, make_shards
from pipeline.stages.build_tokens import TokenStore, make_tokens, tokens_rule
from pipeline.stages.corpus import Corpus, find_corpus
from pipeline.tokens.grouped_rows import HEAD_BYTES, pack_rows
from pipeline.tokens.held_out import choose_held_out
from pipeline.tokens.token_index import TokenParts
from pipeline.tokens.token_parts import INDEX_DTYPE
from pipeline.tokens.word_counts import choose_sample
from scripts.bench.measured import print_result
from tokenizer.vocab import parse_vocab

NUM_FILES = 200_000
SEQ_LENS = [128, 512]
PAGE = 1000  # names of one answer to a listing
BLOCK_BYTES = 60_000  # of a shard
BYTES_PER_TOKEN = 4  # of text
MAX_MEMORY_MB = 2_000  # for each terabyte
MAX_DESCRIPTION_MB = 10
VOCABULARY = (
    "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]) + "\n"
)


@dataclass
class World:
    """What the store pretends to hold, and the requests so far."""

    file_bytes: int = 0
    documents: int = 0  # of each token part
    document_bytes: int = 0
    latency: float = 0.0
    parts: dict[str, int] = field(default_factory=dict)  # their numbers
    record: bytes = b""  # of every part
    # Two pieces each, as the second is that of many.
    records: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    shards: dict[str, int] = field(default_factory=dict)  # their bytes
    written: dict[str, bytes | int] = field(default_factory=dict)  # content, or only its size
    requests: int = 0

    def ask(self, requests: int = 1) -> None:
        """Waits as long as requests take, one after the other."""
        self.requests += requests
        time.sleep(self.latency * requests)

    def index_of(self, part: int) -> bytes:
        """Makes the index of a token part."""
        rng = np.random.Generator(np.random.PCG64(part))
        rows = np.zeros(self.documents, INDEX_DTYPE)
        rows["high"] = np.sort(rng.integers(0, 2**64, self.documents, np.uint64))
        rows["low"] = part
        rows["crc32"] = part
        rows["tokens"] = self.document_bytes // BYTES_PER_TOKEN
        rows["size"] = 2 * rows["tokens"].astype(np.int64) + 60
        rows["offset"] = np.cumsum(rows["size"]) - rows["size"]
        rows["cleaned_bytes"] = self.document_bytes
        rows["sentences"] = 20
        return pack_rows(rows, rows["high"] >> np.uint64(56))

    def size_of(self, path: str) -> int | None:
        """Returns the size of a file in bytes, or None if there is no such file."""
        if path in self.written:
            found = self.written[path]
            return found if isinstance(found, int) else len(found)
        if path.startswith("input/"):
            return self.file_bytes
        stem, _, ending = path.removeprefix("data/tokens/").rpartition(".")
        if stem.removesuffix("-last") in self.parts:
            sizes = {
                "index": HEAD_BYTES + self.documents * INDEX_DTYPE.itemsize,
                "json": len(self.record),
            }
            return sizes.get(ending, self.documents * self.document_bytes // 2)
        name = path.removeprefix("data/")
        return sum(map(len, self.records[name])) if name in self.records else self.shards.get(name)

    def names(self) -> Sequence[str]:
        """Returns the paths of all files."""
        endings = (".tokens", ".index", ".places", "-last.json")
        return [
            *(f"input/{number:06d}.jsonl" for number in range(NUM_FILES)),
            *(f"data/tokens/{part}{ending}" for part in self.parts for ending in endings),
            *(f"data/{name}" for name in (*self.shards, *self.records)),
            *self.written,
        ]

    def read(self, path: str) -> bytes:
        """Returns the content of a file; of an input file only the beginning of its first line."""
        if path in self.written:
            found = self.written[path]
            assert isinstance(found, bytes), f"{path} was not kept"
            return found
        if path.startswith("input/"):
            return b'{"text": "' + bytes(100)
        if path.endswith(".index"):
            return self.index_of(
                self.parts[path.removeprefix("data/tokens/").removesuffix(".index")]
            )
        return b"".join(self.records.get(path.removeprefix("data/"), (self.record,)))


WORLD = World()


class SlowStore(AbstractFileSystem):  # type: ignore[misc]
    """A store like S3 of which every request takes its time."""

    protocol = "slow"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("slow://").strip("/")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Returns the facts about an object, or about a folder with something below it."""
        WORLD.ask()
        path = self._strip_protocol(path)
        size = WORLD.size_of(path)
        if size is not None:
            return {"name": path, "size": size, "type": "file"}
        if path in {"input", "data", "data/tokens"}:
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def find(self, path: str, *_: Any, **__: Any) -> dict[str, dict[str, Any]]:
        """Lists all objects below a folder, with the facts that S3 gives about each."""
        below = f"{self._strip_protocol(path)}/"
        names = [name for name in WORLD.names() if name.startswith(below)]
        WORLD.ask(1 + len(names) // PAGE)
        now = datetime.now(UTC)
        found = {}
        common = {"LastModified": now, "StorageClass": "STANDARD", "type": "file"}
        for number, name in enumerate(names):
            size = WORLD.size_of(name)
            tag = f'"{number:032x}"'
            own = {"Key": name, "name": name, "Size": size, "size": size, "ETag": tag}
            found[name] = own | common
        return found

    def cat_file(self, path: str, start: int = 0, end: int | None = None, **_: Any) -> bytes:
        """Returns a range of a file.

        Only the first bytes of an input file are kept; a range of it is filled up with "a".
        """
        WORLD.ask()
        path = self._strip_protocol(path)
        data = WORLD.read(path)[start:end]
        return (
            data if end is None or not path.startswith("input/") else data.ljust(end - start, b"a")
        )

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        """Keeps what is written, as far as it is read again."""
        WORLD.ask()
        path = self._strip_protocol(path)
        WORLD.written[path] = (
            len(value) if re.search(r"broadcast-|pass-\d\d/blocks", path) else bytes(value)
        )

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Keeps the size only."""
        WORLD.ask()
        WORLD.written[self._strip_protocol(rpath)] = Path(lpath).stat().st_size

    def rm_file(self, path: str) -> None:
        """Removes an object."""
        WORLD.ask()
        path = self._strip_protocol(path)
        WORLD.written.pop(path, None)
        WORLD.records.pop(path.removeprefix("data/"), None)


@dataclass
class Stage:
    """What was measured of a stage, and its bounds."""

    name: str
    seconds: float
    requests: int
    memory_mb: int
    description_mb: float | None
    most_seconds: int
    most_requests: int
    most_memory_mb: int

    @property
    def holds(self) -> bool:
        """Whether the stage is within all its bounds."""
        is_small = (
            self.memory_mb <= self.most_memory_mb
            and (self.description_mb or 0) <= MAX_DESCRIPTION_MB
        )
        return (
            is_small and self.seconds <= self.most_seconds and self.requests <= self.most_requests
        )


class Measured:
    """Runs stages one after the other."""

    def __init__(self, most_memory_mb: int) -> None:
        self.most_memory_mb = most_memory_mb
        self.stages: list[Stage] = []
        self.description: int | None = None

    def run(
        self, name: str, most_seconds: float, most_requests: float, work: Callable[[], Any]
    ) -> Any:
        """Does some work as a stage, measures it, and returns the result of the work."""
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
        before = WORLD.requests
        began = time.monotonic()
        self.description = None
        result = work()
        size = None if self.description is None else round(self.description / 1e6, 2)
        seconds = round(time.monotonic() - began, 1)
        requests = WORLD.requests - before
        bounds = (round(most_seconds), round(most_requests), self.most_memory_mb)
        self.stages.append(Stage(name, seconds, requests, _peak_mb(), size, *bounds))
        print(self.stages[-1], file=sys.stderr, flush=True)
        return result


def _peak_mb() -> int:
    [kilobytes] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) // 1000


def measure(arguments: argparse.Namespace) -> list[Stage]:
    """Measures all stages of one build."""
    vocabulary = parse_vocab(VOCABULARY.encode(), "vocab.txt")
    settings = BuildSettings(
        output="slow://data",
        input=["slow://input"],
        seq_lens=SEQ_LENS,
        passes=arguments.passes,
        exchange="shuffle",
    )
    text_bytes = int(arguments.terabytes * 10**12)
    WORLD.latency = arguments.latency_ms / 1000
    WORLD.file_bytes = text_bytes // NUM_FILES
    whole_terabytes = max(1, arguments.terabytes)
    measured = Measured(round(MAX_MEMORY_MB * whole_terabytes))
    hours = whole_terabytes * 3600
    corpus: Corpus = measured.run(
        # Some files are asked a second time, for their field of text.
        "list and cut the input",
        hours,
        1.02 * NUM_FILES + 64,
        lambda: find_corpus(settings),
    )
    num_parts = len(corpus.parts)
    measured.run("choose the vocabulary's pieces", hours, 0, lambda: choose_sample(corpus.parts))

    def describe_tokens() -> None:
        pipeline = beam.Pipeline(options=pipeline_options(1, [], 4))
        add_tokens_graph(
            pipeline, corpus.parts, tokens_rule(settings, vocabulary), settings.open_tokens()
        )
        measured.description = pipeline.to_runner_api().ByteSize()

    # The parts are in files for the workers, of so many parts each.
    files = num_parts / ELEMENTS_PER_FILE
    measured.run("describe the tokens job", hours, 40 + 2 * files, describe_tokens)
    WORLD.documents = arguments.documents // num_parts
    WORLD.document_bytes = text_bytes // arguments.documents
    WORLD.record = json.dumps(
        {"documents_read": WORLD.documents, "sentences": 9, "tokens": 9, "source": 0}
    ).encode()
    WORLD.parts = {f"{part.key}-00000": number for number, part in enumerate(corpus.parts)}
    pages = 4 * num_parts / PAGE
    store: TokenStore = measured.run(
        "index the token parts", hours, 2 * num_parts + 5 * pages + 100,
        lambda: make_tokens(settings, vocabulary, corpus.parts, []),
    )  # fmt: skip

    def finish(
        builder: ShardBuilder,
        tokens: TokenParts,
        names: Sequence[str],
        tasks: Sequence[ShardTask],
        _mode: str,
        outputs: Outputs,
        *_: object,
    ) -> None:
        pipeline = beam.Pipeline(options=pipeline_options(1, [], 4))
        add_shards_graph(pipeline, builder, tokens, names, tasks, "shuffle")
        measured.description = pipeline.to_runner_api().ByteSize()
        build_all(builder.settings_hash, tasks)
        outputs.count()

    num_shards = len(SEQ_LENS) * arguments.passes * num_buckets_of(store, settings)
    listed = 4 * num_parts + 2 * num_shards
    with mock.patch.object(build_shards, "run_shards_job", finish):
        make = partial(make_shards, settings, vocabulary, store, [])
        most = num_parts + 2.02 * num_shards + 6 * listed / PAGE + 550
        build = measured.run("seal the buckets, publish the shards", hours, most, make)
        again = measured.run("find all of it finished", hours, 5 * listed / PAGE + 100, make)
    assert build.manifest == again.manifest
    made = f"{store.totals.documents:,} documents, {len(build.all_shards):,} shards"
    print(f"{num_parts:,} parts, {made}", file=sys.stderr)
    return measured.stages


def num_buckets_of(store: TokenStore, settings: BuildSettings) -> int:
    """Returns the number of train buckets of the corpus."""
    limits = settings.validation_fraction, settings.validation_tokens
    return (
        len(choose_buckets(settings, store.totals, choose_held_out(store.totals.sources, *limits)))
        - 1
    )


def build_all(settings_hash: str, tasks: Sequence[ShardTask]) -> None:
    """Puts every shard and its record into the store, as workers would have."""
    tokens = max(task.contents.seal.tokens for task in tasks)
    made = {
        seq_len: _make_blocks(seq_len, max(1, tokens // TOKENS_PER_BLOCK)) for seq_len in SEQ_LENS
    }
    nothing = np.zeros(0, np.int64)
    none = BlockTable(nothing, nothing, nothing, nothing, np.zeros(0, np.uint32))
    for task in tasks:
        table, blocks_hash, blocks_text = made[task.seq_len]
        count = int(table.instances.sum())
        shard = Shard(
            *(task.bucket.split, task.seq_len, task.pass_index, task.name),
            *(len(table) * BLOCK_BYTES, "0" * 64, "0" * 64, blocks_hash),
            *(count, count * 100, count * 15, count // 2, count * 12, count),
            task.contents.seal,
        )
        head = format_record(ShardRecord(settings_hash, shard, none))
        WORLD.records[record_name(task.name)] = (head[: head.index(b'"blocks"')], blocks_text)
        WORLD.shards[task.name] = shard.num_bytes


def _make_blocks(seq_len: int, number: int) -> tuple[BlockTable, str, bytes]:
    """Makes the block table of a shard, its hash, and its text in the record of the shard."""
    instances = np.full(number, block_instances(seq_len))
    offset = np.arange(number) * BLOCK_BYTES + 512
    sizes = np.full(number, BLOCK_BYTES - 512)
    crc32 = np.random.default_rng(1).integers(0, 2**32, number).astype(np.uint32)
    table = BlockTable(offset, sizes, instances, instances * 100, crc32)
    blocks = {each.name: getattr(table, each.name).tolist() for each in fields(BlockTable)}
    return table, table.digest(), b'"blocks": ' + json.dumps(blocks).encode() + b"}"


def format_table(stages: Sequence[Stage]) -> str:
    """Returns the measurements as a table in Markdown."""
    names = ("the launcher's stage", "seconds", "bound", "requests", "bound", "memory")
    lines = [f"| {' | '.join(names)} | job's description |", "|---|---|---|---|---|---|---|"]
    for each in stages:
        size = "" if each.description_mb is None else f"{each.description_mb:.2f} MB"
        seconds = f"{each.seconds:,.0f} | {each.most_seconds:,}"
        requests = f"{each.requests:,} | {each.most_requests:,}"
        lines.append(f"| {each.name} | {seconds} | {requests} | {each.memory_mb:,} MB | {size} |")
    return "\n".join(lines)


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--terabytes", type=float, default=1.0, help="Text of the corpus.")
    parser.add_argument(
        "--documents", type=int, default=100_000_000, help="How many documents it is."
    )
    parser.add_argument("--passes", type=int, default=5, help="Passes of each of two lengths.")
    parser.add_argument("--latency_ms", type=float, default=30.0, help="What every request takes.")
    arguments = parser.parse_args()
    fsspec.register_implementation("slow", SlowStore, clobber=True)
    stages = measure(arguments)
    print(format_table(stages))
    rows = [{**asdict(stage), "holds": stage.holds} for stage in stages]
    bounds = {"description_mb": MAX_DESCRIPTION_MB}
    print_result(
        "launcher_scale",
        vars(arguments),
        ("apache-beam", "numpy", "pyarrow"),
        bounds=bounds,
        stages=rows,
    )
    return 0 if all(stage.holds for stage in stages) else 1


if __name__ == "__main__":
    raise SystemExit(main())
