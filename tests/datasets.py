"""Datasets of blocks that a test makes, without the builder's jobs; text and vocabularies."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.shards import block_tables
from pipeline.shards import manifest as tables
from pipeline.shards.block import Block
from pipeline.shards.records import MANIFEST_HASH, BlockTable, Manifest, Shard, canonical_hash
from pipeline.shards.seal import Seal, add_seals
from pipeline.shards.shard_file import pack_shard
from tokenizer.export import tokenizer_json
from tokenizer.vocab import Vocabulary
from tokenizer.word_rule import UNCASED

Place = tuple[str, int, int, int]
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(5)

# Two instances by hand: [CLS] 10 [MASK] [SEP] 12 [SEP] and [CLS] 13 [SEP] [MASK] [SEP].
TINY = Block(
    input_ids=np.array([2, 10, 4, 3, 12, 3, 2, 13, 3, 4, 3], np.uint16),
    offsets=np.array([0, 6, 11], np.int32),
    segment_a_length=np.array([4, 3], np.uint16),
    masked_lm_positions=np.array([2, 3], np.uint16),
    masked_lm_ids=np.array([11, 14], np.uint16),
    masked_offsets=np.array([0, 1, 2], np.int32),
    is_random_next=np.array([False, True]),
    document_a=np.array([1, 2**64 - 2], np.uint64),
    document_b=np.array([1, 7], np.uint64),
)


def write_corpus(folder: Path, num_documents: int) -> Path:
    """a.jsonl, documents of 12 sentences of 50 made-up words, and their vocab.txt; the folder."""
    words = [
        f"{first}{last}" for first in "bcdfgklmnp" for last in ("ana", "elo", "iri", "otu", "uma")
    ]
    with (folder / "a.jsonl").open("w") as file:
        for number in range(num_documents):
            sentences = [
                " ".join(
                    words[(number * 7 + row * 3 + step * (1 + number % 11)) % 50]
                    for step in range(12)
                )
                for row in range(12)
            ]
            file.write(json.dumps({"text": ". ".join(sentences) + f" {number}."}) + "\n")
    write_vocab(folder / "vocab.txt", words)
    return folder


def write_vocab(path: Path, words: Sequence[str]) -> Path:
    """A vocabulary of the words, a full stop and digits, which also continue words; where it is."""
    digits = "0123456789"
    pieces = [*SPECIALS, ".", *words, *digits, *(f"##{digit}" for digit in digits)]
    path.write_text("\n".join(pieces) + "\n")
    return path


CORPUS = Seal(100_000, 9_000_000, "0123456789abcdef" * 2)
"""What the documents of datasets made here are said to be; blocks know nothing of it."""


def deal_seals(places: Iterable[Place], corpus: Seal) -> dict[Place, Seal]:
    """Seals by which every pass holds the corpus: its last train shard has what others leave."""
    seals = {place: Seal(10, 900 + place[-1], f"{1 + place[-1]:032x}") for place in places}
    for last in {place[:3]: place for place in sorted(seals) if place[0] == "train"}.values():
        shared = [each for each in seals if each[1] == last[1] and each[0] != "train"]
        others = [
            seals[each]
            for each in (*shared, *(each for each in seals if each[:3] == last[:3]))
            if each != last
        ]
        taken = add_seals(others)
        ids_xor = (taken + corpus).ids_xor  # what is there twice goes out of an exclusive or
        seals[last] = Seal(
            corpus.documents - taken.documents, corpus.tokens - taken.tokens, ids_xor
        )
    return seals


def write_dataset(
    folder: Path,
    shards: Mapping[Place, Sequence[Block]],
    vocab_size: int,
    settings: Mapping[str, Any],
    corpus: Seal = CORPUS,
) -> Path:
    """A dataset of the blocks given for each (split, seq_len, pass, bucket), of words w0, w1 ..."""
    packed = []
    seals = deal_seals(shards, corpus)
    for (split, seq_len, pass_index, bucket), blocks in shards.items():
        name = tables.shard_name(split, seq_len, pass_index, bucket)
        seal = seals[split, seq_len, pass_index, bucket]
        tar, shard, table = pack_shard(blocks, split, seq_len, pass_index, name, MASK, seal)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(tar)
        packed.append((shard, table))
    rows = [shard for shard, _ in packed]
    vocabulary = Vocabulary(
        (*SPECIALS, *(f"w{number}" for number in range(vocab_size - len(SPECIALS))))
    )
    finished = Manifest(
        format_version=tables.FORMAT_VERSION,
        software={},
        settings=settings,
        settings_hash=canonical_hash(settings),
        vocab_sha256=vocabulary.sha256,
        tokenizer_sha256=hashlib.sha256(tokenizer_json(vocabulary, UNCASED).encode()).hexdigest(),
        vocab_size=vocab_size,
        special_ids={"pad": PAD, "unk": UNK, "cls": CLS, "sep": SEP, "mask": MASK},
        groups=tables.group_totals(rows),
        counters={},
        root_hash=tables.root_hash(rows),
        seal=corpus,
    )
    for place in {(shard.split, shard.seq_len, shard.pass_index) for shard in rows}:
        members = [
            shard for shard in rows if (shard.split, shard.seq_len, shard.pass_index) == place
        ]
        (folder / tables.pass_folder(*place) / "pass.json").write_bytes(
            tables.pass_json(members, finished.settings_hash)
        )
    (folder / "vocab.txt").write_text(vocabulary.to_text())
    (folder / "tokenizer.json").write_text(tokenizer_json(vocabulary, UNCASED))
    (folder / tables.SHARDS_TABLE).write_bytes(tables.shards_table(rows))
    (folder / tables.BLOCKS_TABLE).write_bytes(
        block_tables.blocks_table([table for _, table in packed])
    )
    (folder / tables.MANIFEST).write_bytes(finished.to_json())
    edit_manifest(folder)
    return folder


def edit_manifest(
    folder: Path, edit: Callable[[dict[str, Any]], object] = lambda _: None, **changes: Any
) -> None:
    """Changes manifest.json; its hashes are then those of the tables and of its other fields."""
    path = folder / tables.MANIFEST
    fields = json.loads(path.read_bytes())
    files = {
        name: (folder / name).read_bytes() for name in (tables.SHARDS_TABLE, tables.BLOCKS_TABLE)
    }
    fields["tables_sha256"] = {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items()
    }
    fields |= changes
    edit(fields)
    path.write_bytes(with_own_hash(fields))


def with_own_hash(fields: Mapping[str, Any]) -> bytes:
    """A manifest that says of itself what it holds."""
    held = {name: value for name, value in fields.items() if name != MANIFEST_HASH}
    return json.dumps({**held, MANIFEST_HASH: canonical_hash(held)}).encode()


def shard_rows(folder: Path) -> list[Shard]:
    """The rows of shards.parquet."""
    return tables.parse_shards_table((folder / tables.SHARDS_TABLE).read_bytes(), "here")


def block_rows(folder: Path) -> list[BlockTable]:
    """The rows of blocks.parquet, of each shard."""
    data, rows = (folder / tables.BLOCKS_TABLE).read_bytes(), shard_rows(folder)
    opened = block_tables.open_block_tables(data, rows, "here")
    return [opened.table(row) for row in range(len(rows))]


def write_table(folder: Path, name: str, data: bytes) -> None:
    """Writes one table, and a manifest that speaks of it."""
    (folder / name).write_bytes(data)
    edit_manifest(folder)
