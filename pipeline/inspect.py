"""Instances of a dataset in readable form: segments, masked words, label, documents."""

from collections.abc import Iterator

import numpy as np

from pipeline.shards.block import Block, checksum, decode_block
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import Shard
from tokenizer.vocab import Vocabulary, parse_vocab

_CONTINUATION = "##"


def read_blocks(dataset: Dataset, shard: Shard) -> Iterator[Block]:
    """A shard's blocks in order.

    Raises:
        ValueError: A block is damaged.
    """
    table = dataset.blocks(shard)
    for number in range(len(table)):
        where = f"{dataset.locate(shard.name)} block {number}"
        start, stop = int(table.offset[number]), int(table.offset[number] + table.size[number])
        data = dataset.read_bytes(shard.name, start, stop)
        if checksum(data) != int(table.crc32[number]):
            raise ValueError(f"{where}: damaged: its crc32 is not the block table's; restore or rebuild the dataset")
        yield decode_block(data, where)


def show_instances(dataset: Dataset, split: str, seq_len: int, count: int) -> Iterator[str]:
    """The first instances of pass 0 of one split and length, each as a few lines of text."""
    vocabulary = parse_vocab(dataset.read_file("vocab.txt"), dataset.locate("vocab.txt"))
    dataset.num_passes(split, seq_len)
    shown = 0
    for shard in dataset.shards(split, seq_len, 0):
        for block in read_blocks(dataset, shard):
            for row in range(block.num_instances):
                if shown == count:
                    return
                yield f"{shard.name} #{shown}\n{format_instance(block.slice(row, row + 1), vocabulary)}"
                shown += 1


def format_instance(block: Block, vocabulary: Vocabulary) -> str:
    """One instance: both segments with masked words as [shown>original], the label and the documents."""
    pieces = [vocabulary.tokens[token] for token in block.input_ids]
    for position, label in zip(block.masked_lm_positions, block.masked_lm_ids, strict=True):
        pieces[position] = _mark(pieces[position], vocabulary.tokens[label])
    middle = int(block.segment_a_length[0])
    is_random = bool(block.is_random_next[0])
    label = "random: B is from another document" if is_random else "next: B follows A"
    documents = f"{int(block.document_a[0]):016x} / {int(block.document_b[0]):016x}"
    return (
        f"  A: {_join(pieces[1 : middle - 1])}\n"
        f"  B: {_join(pieces[middle:-1])}\n"
        f"  label: {label}; documents {documents};"
        f" {len(pieces)} tokens, {len(block.masked_lm_ids)} masked"
    )


def describe_masks(block: Block, mask_id: int) -> dict[str, int]:
    """What stands at the block's masked positions: [MASK], the token itself, or another one."""
    starts = np.repeat(block.offsets[:-1], np.diff(block.masked_offsets))
    shown = block.input_ids[starts + block.masked_lm_positions]
    is_mask, is_kept = shown == mask_id, shown == block.masked_lm_ids
    num_mask, num_kept = int(np.count_nonzero(is_mask)), int(np.count_nonzero(is_kept & ~is_mask))
    return {"mask": num_mask, "kept": num_kept, "random": len(shown) - num_mask - num_kept}


def _mark(shown: str, original: str) -> str:
    prefix = _CONTINUATION if original.startswith(_CONTINUATION) else ""
    return (
        f"{prefix}[{original.removeprefix(_CONTINUATION)}]"
        if shown == original
        else (f"{prefix}[{shown}>{original.removeprefix(_CONTINUATION)}]")
    )


def _join(pieces: list[str]) -> str:
    text = " ".join(pieces)
    return text.replace(f" {_CONTINUATION}", "")
