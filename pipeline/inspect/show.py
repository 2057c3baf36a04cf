"""Instances of a dataset in readable form: segments, masked words, label, documents."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.shards.block import Block
from pipeline.shards.dataset import Dataset, read_blocks
from pipeline.shards.records import Shard
from pipeline.tokens.provenance import EncodedDocuments, find_documents, format_place, printable
from tokenizer.vocab import CONTINUATION, Vocabulary, parse_vocab

LABELS = {False: "next: B follows A", True: "random: B is from another document"}


def read_vocabulary(dataset: Dataset) -> Vocabulary:
    """The dataset's own vocabulary."""
    return parse_vocab(dataset.read_file("vocab.txt"), dataset.locate("vocab.txt"))


def show_instances(
    dataset: Dataset, split: str, seq_len: int, count: int, tokens: EncodedDocuments | None = None
) -> Iterator[str]:
    """The first instances of pass 0 of one split and length, each as a few lines of text.

    With the dataset's encoded documents also where A and B come from.
    """
    vocabulary = read_vocabulary(dataset)
    dataset.num_passes(split, seq_len)
    chosen = list(itertools.islice(_rows_of(dataset, split, seq_len), count))
    described = [describe_instance(block, vocabulary) for _, block in chosen]
    ids = [instance[name] for instance in described for name in ("document_a", "document_b")]
    found = find_documents(tokens, ids) if tokens else {}
    places = {
        start: format_place(dataset.manifest, documents[0]) for start, documents in found.items()
    }
    for number, ((shard, _), instance) in enumerate(zip(chosen, described, strict=True)):
        yield f"{shard.name} #{number}\n{format_instance(instance, places)}"


def _rows_of(dataset: Dataset, split: str, seq_len: int) -> Iterator[tuple[Shard, Block]]:
    """Each instance of pass 0 as a block of its own, with its shard."""
    for shard in dataset.shards(split, seq_len, 0):
        for block in read_blocks(dataset, shard):
            yield from ((shard, block.slice(row, row + 1)) for row in range(block.num_instances))


def format_instance(instance: Mapping[str, Any], places: Mapping[str, str]) -> str:
    """What `describe_instance` said: both segments with masked words as [shown>original], the label, the documents."""
    origins = "".join(
        f"\n  {name} is from {places[instance[key]]}"
        for name, key in (("A", "document_a"), ("B", "document_b"))
        if instance[key] in places
    )
    return (
        f"  A: {_format_runs(instance['a'])}\n"
        f"  B: {_format_runs(instance['b'])}\n"
        f"  label: {LABELS[instance['is_random_next']]};"
        f" documents {instance['document_a']} / {instance['document_b']};"
        f" {instance['tokens']} tokens, {instance['masked']} masked{origins}"
    )


def format_dropped(
    examples: Sequence[Mapping[str, str]] | None, counters: Mapping[str, Any]
) -> Iterator[str]:
    """The examples of dropped documents in a report, by reason, behind the number that each reason dropped."""
    kept = examples or ()
    for name, count in counters.items():
        if not name.startswith("dropped_"):
            continue
        yield f"{name.removeprefix('dropped_')}: {count:,} dropped"
        yield from (
            f"  {printable(each['where'])}\n    {printable(each['text'])}"
            for each in kept
            if each["reason"] == name.removeprefix("dropped_")
        )
    if examples is None:
        yield "no examples: the encoded documents (tokens/), which held them, are gone"


def describe_instance(block: Block, vocabulary: Vocabulary) -> dict[str, Any]:
    """One instance as plain data: `a` and `b` are lists of text and, at masked pieces, of {shown, original}."""
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
    """Pieces joined to words: text as strings, with a {shown, original} for every masked piece in between."""
    runs: list[Any] = []
    text = ""
    for position in positions:
        piece = originals.get(position, pieces[position])
        is_first = position == positions.start
        if piece.startswith(CONTINUATION):
            text += CONTINUATION if is_first else ""  # the cut went through a word
        else:
            text += "" if is_first else " "
        if position in originals:
            runs += [text] if text else []
            runs.append({"shown": pieces[position], "original": piece})
            text = ""
        else:
            text += piece.removeprefix(CONTINUATION)
    return runs + ([text] if text else [])


def _format_runs(runs: Sequence[Any]) -> str:
    return "".join(
        run if isinstance(run, str) else _mark(run["shown"], run["original"]) for run in runs
    )


def _mark(shown: str, original: str) -> str:
    word = original.removeprefix(CONTINUATION)
    return f"[{word}]" if shown == original else f"[{shown}>{word}]"
