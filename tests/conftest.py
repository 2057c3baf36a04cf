"""Fixtures every test may use."""

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from pipeline.shards import manifest as tables
from pipeline.shards.block import Block, block_digest, block_instances, checksum, content_hash, encode_block


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with golden/ and data/, named by BEAMBERT_TEST_DATA; the test is skipped where it is unset."""
    folder = os.environ.get("BEAMBERT_TEST_DATA")
    if not folder:
        pytest.skip("BEAMBERT_TEST_DATA is not set: real corpora are not at hand")
    path = Path(folder)
    assert (path / "golden").is_dir(), f"BEAMBERT_TEST_DATA={folder} has no golden/"
    return path


VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(95))]


@pytest.fixture(scope="session")
def make_block() -> Callable[..., Block]:
    """make_block(num_instances, first_id=0, max_tokens=40, seed=0): random instances over VOCABULARY.

    Instance n has document_a = first_id + n, so tests can tell which instances they got.
    """
    return _make_block


@pytest.fixture(scope="session")
def make_dataset() -> Callable[..., Path]:
    """make_dataset(folder, train, validation=(), seq_len=8192, max_tokens=40, seed=0) writes a finished dataset.

    `train` has the instances of every shard of every pass: ((20, 30), (10, 40)) is 2 passes of 2 shards. Blocks hold
    65,536 // seq_len instances: 8 at 8,192. Instance n of shard s of pass p has document_a = 10^8 p + 10^5 s + n.
    """
    return _make_dataset


def _make_block(num_instances: int, first_id: int = 0, max_tokens: int = 40, seed: int = 0) -> Block:
    rng = np.random.default_rng([seed, first_id])
    lengths = rng.integers(min(8, max_tokens), max_tokens + 1, num_instances)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    segment_a = rng.integers(3, lengths - 2).astype(np.uint16)
    input_ids = rng.integers(5, len(VOCABULARY), offsets[-1]).astype(np.uint16)
    input_ids[offsets[:-1]] = 2
    input_ids[offsets[:-1] + segment_a - 1] = input_ids[offsets[1:] - 1] = 3
    ordinary = [np.setdiff1d(np.arange(1, n - 1), [a - 1]) for n, a in zip(lengths, segment_a, strict=True)]
    positions = [np.sort(rng.choice(choices, max(1, len(choices) * 15 // 100), replace=False)) for choices in ordinary]
    masked_offsets = np.concatenate([[0], np.cumsum([len(chosen) for chosen in positions])]).astype(np.int32)
    flat = np.concatenate(
        [np.zeros(0, int), *(chosen + start for chosen, start in zip(positions, offsets[:-1], strict=True))]
    )
    labels = input_ids[flat]
    input_ids[flat] = 4
    return Block(
        input_ids=input_ids,
        offsets=offsets,
        segment_a_length=segment_a,
        masked_lm_positions=np.concatenate([np.zeros(0, int), *positions]).astype(np.uint16),
        masked_lm_ids=labels,
        masked_offsets=masked_offsets,
        is_random_next=rng.random(num_instances) < 0.5,
        document_a=np.arange(first_id, first_id + num_instances, dtype=np.uint64),
        document_b=rng.integers(0, 2**63, num_instances, dtype=np.uint64),
    )


def _make_dataset(
    folder: Path,
    train: Sequence[Sequence[int]],
    validation: Sequence[int] = (),
    seq_len: int = 8192,
    max_tokens: int = 40,
    seed: int = 0,
) -> Path:
    groups = {("train", i): sizes for i, sizes in enumerate(train)} | (
        {("validation", 0): validation} if validation else {}
    )
    written = [
        _write_shard(folder, split, seq_len, pass_index, index, size, max_tokens, seed)
        for (split, pass_index), sizes in groups.items()
        for index, size in enumerate(sizes)
    ]
    shards = [shard for shard, _ in written]
    vocabulary = "".join(f"{token}\n" for token in VOCABULARY).encode()
    settings = {"seed": seed, "seq_lens": [seq_len]}
    finished = tables.Manifest(
        format_version=tables.FORMAT_VERSION,
        software={},
        settings=settings,
        settings_hash=tables.settings_hash(settings),
        vocab_sha256=hashlib.sha256(vocabulary).hexdigest(),
        vocab_size=len(VOCABULARY),
        special_ids={"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
        groups=tables.group_totals(shards),
        counters={},
        root_hash=tables.root_hash(shards),
    )
    (folder / "vocab.txt").write_bytes(vocabulary)
    (folder / tables.SHARDS_TABLE).write_bytes(tables.shards_table(shards))
    (folder / tables.BLOCKS_TABLE).write_bytes(tables.blocks_table([blocks for _, blocks in written]))
    (folder / tables.MANIFEST).write_bytes(finished.to_json())
    return folder


def _write_shard(
    folder: Path, split: str, seq_len: int, pass_index: int, index: int, size: int, max_tokens: int, seed: int
) -> tuple[tables.Shard, tables.BlockTable]:
    name = tables.shard_name(split, seq_len, pass_index, index)
    first_id, full = 10**8 * pass_index + 10**5 * index, block_instances(seq_len)
    blocks = [_make_block(min(full, size - n), first_id + n, max_tokens, seed) for n in range(0, size, full)]
    encoded = [encode_block(block) for block in blocks]
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, data in enumerate(encoded):
            member = tarfile.TarInfo(f"{number:06d}.arrow")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    with tarfile.open(path) as tar:
        offsets = [member.offset_data for member in tar]
    table = tables.BlockTable(
        offset=np.array(offsets, np.int64),
        size=np.array([len(data) for data in encoded], np.int64),
        instances=np.array([block.num_instances for block in blocks], np.int64),
        tokens=np.array([block.num_tokens for block in blocks], np.int64),
        crc32=np.array([checksum(data) for data in encoded], np.uint32),
    )
    shard = tables.Shard(
        split=split,
        seq_len=seq_len,
        pass_index=pass_index,
        name=name,
        num_bytes=path.stat().st_size,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        content_hash=content_hash([block_digest(block) for block in blocks]),
        instances=size,
        tokens=int(table.tokens.sum()),
        masked=sum(block.num_masked for block in blocks),
        random_next=sum(int(block.is_random_next.sum()) for block in blocks),
    )
    return shard, table
