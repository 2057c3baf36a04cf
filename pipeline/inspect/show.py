"""Instances of a dataset in readable form: segments, masked words, label, documents."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.shards.block import Block
from pipeline.shards.dataset import Dataset, read_blocks
from pipeline.shards.records import Shard
from pipeline.storage.quoting import printable
from pipeline.tokens.provenance import EncodedDocuments, find_documents, format_place
from tokenizer.vocab import CONTINUATION, Vocabulary, parse_vocab

LABELS = {False: "next: B follows A", True: "random: B is from another document"}


def read_vocabulary(dataset: Dataset) -> Vocabulary:
    """The dataset's own vocabulary."""
    return parse_vocab(dataset.read_file("vocab.txt"), dataset.locate("vocab.txt"))


def show_instances(
    dataset: Dataset, split: str, seq_len: int, count: int, tokens: EncodedDocuments | None = None
) -> Iterator[str]:
    """The first instances of pass 0 as text; with encoded documents, also where they are from."""
    vocabulary = read_vocabulary(dataset)
    dataset.num_passes(split, seq_len)
    chosen = list(itertools.islice(_rows_of(dataset, split, seq_len), count))
    described = [describe_instance(block, vocabulary) for _, block in chosen]
    ids = [instance[name] for instance in described for name in ("document_a", "document_b")]
    found = find_documents(tokens, ids) if tokens else {}
    places = {start: format_place(dataset.manifest, each[0]) for start, each in found.items()}
    for number, ((shard, _), instance) in enumerate(zip(chosen, described, strict=True)):
        yield f"{shard.name} #{number}\n{format_instance(instance, places)}"


def _rows_of(dataset: Dataset, split: str, seq_len: int) -> Iterator[tuple[Shard, Block]]:
    """Each instance of pass 0 as a block of its own, with its shard."""
    for shard in dataset.shards(split, seq_len, 0):
        for block in read_blocks(dataset, shard):
            yield from ((shard, block.slice(row, row + 1)) for row in range(block.num_instances))


def format_instance(instance: Mapping[str, Any], places: Mapping[str, str]) -> str:
    """What `describe_instance` said, with masked words as [shown>original]."""
    ids = {"A": instance["document_a"], "B": instance["document_b"]}
    lines = [
        f"  A: {_format_runs(instance['a'])}",
        f"  B: {_format_runs(instance['b'])}",
        f"  label: {LABELS[instance['is_random_next']]}; documents {ids['A']} / {ids['B']};"
        f" {instance['tokens']} tokens, {instance['masked']} masked",
        *(f"  {name} is from {places[own]}" for name, own in ids.items() if own in places),
    ]
    return "\n".join(lines)


def format_dropped(
    examples: Sequence[Mapping[str, str]] | None, counters: Mapping[str, Any]
) -> Iterator[str]:
    """The examples of dropped documents in a report, behind the number that each reason dropped."""
    for name, count in counters.items():
        if name != (reason := name.removeprefix("dropped_")):
            yield f"{reason}: {count:,} dropped"
            for each in examples or ():
                if each["reason"] == reason:
                    yield f"  {printable(each['where'])}\n    {printable(each['text'])}"
    if examples is None:
        yield "no examples: the encoded documents (tokens/), which held them, are gone"


def describe_instance(block: Block, vocabulary: Vocabulary) -> dict[str, Any]:
    """One instance as data: `a` and `b` are text and, at masked pieces, {shown, original}."""
    pieces = [vocabulary.tokens[token] for token in block.input_ids]
    labels = zip(block.masked_lm_positions.tolist(), block.masked_lm_ids, strict=True)
    originals = {position: vocabulary.tokens[label] for position, label in labels}
    middle = int(block.segment_a_length[0])
    return {
        "a": _segment_runs(pieces, originals, range(1, middle - 1)),
        "b": _segment_runs(pieces, originals, range(middle, len(pieces) - 1)),
        "is_random_next": bool(block.is_random_next[0]),
        "document_a": f"{int(block.document_a[0]):016x}",
        "document_b": f"{int(block.document_b[0]):016x}",
        "tokens": len(pieces),
        "masked": len(originals),
    }


def _segment_runs(pieces: Sequence[str], originals: dict[int, str], positions: range) -> list[Any]:
    """Pieces joined to words, and the masked pieces in between."""
    runs: list[Any] = []
    text = ""
    for position in positions:
        piece = originals.get(position, pieces[position])
        is_first, continues = position == positions.start, piece.startswith(CONTINUATION)
        if is_first == continues:  # a word begins, or the cut went through one
            text += CONTINUATION if is_first else " "
        if position in originals:
            runs += [text] if text else []
            runs.append({"shown": pieces[position], "original": piece})
            text = ""
        else:
            text += piece.removeprefix(CONTINUATION)
    return runs + ([text] if text else [])


def _format_runs(runs: Sequence[Any]) -> str:
    return "".join(run if isinstance(run, str) else _mark(**run) for run in runs)


def _mark(shown: str, original: str) -> str:
    word = original.removeprefix(CONTINUATION)
    return f"[{word}]" if shown == original else f"[{shown}>{word}]"
