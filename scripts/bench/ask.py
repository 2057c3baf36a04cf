"""Times `trainer ask` on a simulated run: `python -m scripts.bench.ask`.

The dataset has the tables of all its shards. The first shard of each pass is a file of its own, and
the others link to 16 files, so that any of them can be read. The run has a metrics.jsonl of all its
steps, of the size that rows have. The answer without an index would read every block: one shard is
read that way, and its seconds are multiplied by the number of shards.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from pipeline.shards.block import Block, block_instances
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.shards.manifest import FORMAT_VERSION, shard_name
from pipeline.shards.records import BlockTable, Manifest, Shard, canonical_hash
from pipeline.shards.seal import Seal
from pipeline.shards.shard_file import pack_shard
from scripts.bench.made_dataset import write_tables
from scripts.bench.measured import print_result
from tokenizer.export import tokenizer_json
from tokenizer.vocab import Vocabulary
from tokenizer.word_rule import UNCASED

SEQ_LEN = 128
VOCAB_SIZE = 30_000
GLOBAL_BATCH = 256
DOCUMENTS = 20_000
"""Documents of a bucket."""
ROW_BYTES = 800
"""Bytes of a row of metrics.jsonl."""
VARIANTS = 16
"""Different files that stand for the shards of all buckets but the first."""
SPECIALS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
SEAL = Seal(DOCUMENTS, DOCUMENTS * 700, f"{1:032x}")


def make_block(rng: np.random.Generator, num_buckets: int) -> Block:
    """Returns a full block of random tokens, whose documents are in the first bucket."""
    count = block_instances(SEQ_LEN)
    offsets = np.arange(count + 1, dtype=np.int32) * SEQ_LEN
    input_ids = rng.integers(5, VOCAB_SIZE, count * SEQ_LEN).astype(np.uint16)
    ids = np.arange(DOCUMENTS, dtype=np.uint64) * np.uint64(2**64 // num_buckets // DOCUMENTS)
    document_a = rng.choice(ids, count)
    is_random = rng.random(count) < 0.5
    positions = np.tile(np.arange(1, 20, dtype=np.uint16), count)
    return Block(
        input_ids=input_ids,
        offsets=offsets,
        segment_a_length=np.full(count, 64, np.uint16),
        masked_lm_positions=positions,
        masked_lm_ids=rng.integers(5, VOCAB_SIZE, len(positions)).astype(np.uint16),
        masked_offsets=np.arange(count + 1, dtype=np.int32) * 19,
        is_random_next=is_random,
        document_a=document_a,
        document_b=np.where(is_random, rng.choice(ids, count), document_a),
    )


def write_simulated_dataset(folder: Path, passes: int, buckets: int, blocks: int) -> None:
    """Writes the tables of all shards, and the files that the shards are or link to."""
    rng = np.random.default_rng(1)
    shards: list[Shard] = []
    tables: list[BlockTable] = []

    def pack(name: str) -> tuple[Shard, BlockTable]:
        content = [make_block(rng, buckets) for _ in range(blocks)]
        tar, shard, table = pack_shard(content, "train", SEQ_LEN, 0, name, 4, SEAL)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(tar)
        return shard, table

    variants = [pack(f"variant-{number}.tar") for number in range(VARIANTS)]
    for pass_index in range(passes):
        for bucket in range(buckets):
            name = shard_name("train", SEQ_LEN, pass_index, bucket)
            shard, table = pack(name) if bucket == 0 else variants[bucket % VARIANTS]
            if bucket:
                (folder / name).symlink_to(folder / shard.name)
            shards.append(replace(shard, name=name, pass_index=pass_index))
            tables.append(table)
    vocabulary = Vocabulary(
        ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(VOCAB_SIZE - 5)))
    )
    settings = {"lower_case": True, "documents_hash": "0" * 64}
    files = {
        "vocab.txt": vocabulary.to_text().encode(),
        "tokenizer.json": tokenizer_json(vocabulary, UNCASED).encode(),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    sha256 = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        software={},
        settings=settings,
        settings_hash=canonical_hash(settings),
        vocab_sha256=sha256["vocab.txt"],
        tokenizer_sha256=sha256["tokenizer.json"],
        vocab_size=VOCAB_SIZE,
        special_ids=SPECIALS,
        groups=(),
        counters={},
        root_hash="",
        seal=SEAL,
    )
    write_tables(folder, manifest, shards, tables)


def write_simulated_run(folder: Path, data: Path, steps: int) -> None:
    """Writes the settings, facts and metrics of a run of so many steps."""
    folder.mkdir()
    manifest = open_dataset(str(data)).manifest
    of_data = {"name": "data", "url": str(data), "weight": 1, "lower_case": True}
    for key in ("root_hash", "settings_hash", "vocab_sha256", "tokenizer_sha256"):
        of_data[key] = getattr(manifest, key)
    facts = {"id": "0", "model": {}, "launches": [], "datasets": [of_data]}
    (folder / "run.json").write_text(json.dumps(facts))
    phase = {"seq_len": SEQ_LEN, "global_batch": GLOBAL_BATCH, "steps": steps, "peak_lr": 1e-4}
    config = {"data": [str(data)], "phases": [phase], "masking": "static", "seed": 7}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            start = f'{{"step": {step}, "split": "train", "phase": 0, "position": '
            row = f'{start}{(step - 1) * GLOBAL_BATCH}, "loss": 1.0, "more": "'
            file.write(f'{row:x<{ROW_BYTES - 3}}"}}\n')


def ask(run: Path, cache: Path, *question: str) -> dict[str, float]:
    """Returns the wall and CPU seconds of a question, and the bytes of its answer."""
    command = [sys.executable, "-m", "trainer", "ask", str(run), *question]
    flags = ["--format", "jsonl", "--origins", "false", "--cache_dir", str(cache)]
    began = time.monotonic()
    cpu_before = _cpu_of_children()
    done = subprocess.run([*command, *flags], check=True, stdout=subprocess.PIPE)
    return {
        "seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": round(_cpu_of_children() - cpu_before, 2),
        "bytes": len(done.stdout),
    }


def _cpu_of_children() -> float:
    """Returns the CPU seconds of all programs that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--buckets", type=int, default=1024, help="a power of two")
    parser.add_argument("--blocks", type=int, default=64, help="blocks of a shard")
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="beambert-ask-") as scratch:
        data, run, cache = (Path(scratch) / name for name in ("data", "run", "cache"))
        write_simulated_dataset(data, options.passes, options.buckets, options.blocks)
        write_simulated_run(run, data, options.steps)
        dataset = open_dataset(str(data))
        block = next(iter(read_blocks(dataset, dataset.all_shards[0])))
        document = f"{int(block.document_a[0]):016x}"
        first = ask(run, cache, "--document", document)
        again = ask(run, cache, "--document", document)
        step = ask(run, cache, "--step", str(options.steps))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        began = time.monotonic()
        for block in read_blocks(dataset, dataset.all_shards[0]):
            _ = block.document_a
        of_shard = time.monotonic() - began
        print_result(
            "ask",
            vars(options),
            ("numpy", "pyarrow"),
            shards=options.passes * options.buckets,
            document=first,
            document_again=again,
            step=step,
            peak_megabytes=round(peak / 1e6),
            cache_megabytes=round(
                sum(path.stat().st_size for path in cache.rglob("*.ids")) / 1e6, 2
            ),
            every_block_seconds=round(of_shard * options.passes * options.buckets),
            cpus=os.cpu_count(),
        )


if __name__ == "__main__":
    main()
