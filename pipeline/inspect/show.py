"""Shows instances of a dataset in readable form: segments, masked words, label, documents."""

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
    """Reads the vocabulary that a dataset was built with, from its vocab.txt.

    Raises:
        ValueError: The file is not a vocabulary.
    """
    return parse_vocab(dataset.read_file("vocab.txt"), dataset.locate("vocab.txt"))


def show_instances(
    dataset: Dataset, split: str, seq_len: int, count: int, tokens: EncodedDocuments | None = None
) -> Iterator[str]:
    """Yields the first instances of pass 0 as text.

    Args:
        dataset: The dataset.
        split: "train" or "validation".
        seq_len: The sequence length of the instances.
        count: How many instances are shown.
        tokens: The encoded documents, from which the origin of each document is known. If None,
            origins are not shown.
    """
    vocabulary = read_vocabulary(dataset)
    dataset.num_passes(split, seq_len)
    chosen = list(itertools.islice(_rows_of(dataset, split, seq_len), count))
    described = [describe_instance(block, vocabulary) for _, block in chosen]

    ids = [instance[name] for instance in described for name in ("document_a", "document_b")]
    found = find_documents(tokens, ids) if tokens else {}
    places = {
        document_id: format_place(dataset.manifest, documents[0])
        for document_id, documents in found.items()
    }
    for number, ((shard, _), instance) in enumerate(zip(chosen, described, strict=True)):
        yield f"{shard.name} #{number}\n{format_instance(instance, places)}"


def _rows_of(dataset: Dataset, split: str, seq_len: int) -> Iterator[tuple[Shard, Block]]:
    """Yields the instances of pass 0 one by one, lazily.

    Args:
        dataset: The dataset.
        split: "train" or "validation".
        seq_len: The sequence length of the instances.

    Yields:
        The shard that an instance is in, and a block whose only instance it is.
    """
    for shard in dataset.shards(split, seq_len, 0):
        for block in read_blocks(dataset, shard):
            yield from ((shard, block.slice(row, row + 1)) for row in range(block.num_instances))


def format_instance(instance: Mapping[str, Any], places: Mapping[str, str]) -> str:
    """Returns an instance as lines of text, with masked words as [shown>original].

    Args:
        instance: The result of `describe_instance`.
        places: The origin of each document, by its id. A document that is not in the mapping is
            shown without an origin.
    """
    ids = {"A": instance["document_a"]}
    segments = [f"  A: {format_segment(instance['a'])}"]
    label = "one segment"
    if instance["b"]:
        ids["B"] = instance["document_b"]
        segments.append(f"  B: {format_segment(instance['b'])}")
        label = LABELS[instance["is_random_next"]]
    lines = [
        *segments,
        f"  label: {label}; documents {' / '.join(ids.values())};"
        f" {instance['tokens']} tokens, {instance['masked']} masked",
        *(
            f"  {name} is from {places[document_id]}"
            for name, document_id in ids.items()
            if document_id in places
        ),
    ]
    return "\n".join(lines)


def format_dropped(
    examples: Sequence[Mapping[str, str]] | None, counters: Mapping[str, Any]
) -> Iterator[str]:
    """Yields lines that say how many documents were dropped for each reason, with examples.

    Args:
        examples: Dropped documents from report.json, each with the keys `reason`, `where` and
            `text`. None if the encoded documents, which hold them, are gone.
        counters: The counters of a manifest. Those of dropped documents are called "dropped_"
            followed by the reason.
    """
    for name, count in counters.items():
        reason = name.removeprefix("dropped_")
        if name != reason:
            yield f"{reason}: {count:,} dropped"
            for example in examples or ():
                if example["reason"] == reason:
                    yield f"  {printable(example['where'])}\n    {printable(example['text'])}"
    if examples is None:
        yield "no examples: the encoded documents (tokens/), which held them, are gone"


def describe_instance(block: Block, vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns one instance as plain data, for report.json and for `format_instance`.

    Args:
        block: A block that holds the instance alone.
        vocabulary: The dataset's vocabulary.

    Returns:
        A mapping with the keys `a` and `b` for the segments, each as `_split_at_masks` returns it,
        and `b` empty if there is one segment;
        `is_random_next`; `document_a` and `document_b`, the first 64 bits of the documents' ids in
        hex; and `tokens` and `masked`, the numbers of tokens and of masked positions.
    """
    pieces = [vocabulary.tokens[token] for token in block.input_ids]
    labels = zip(block.masked_lm_positions.tolist(), block.masked_lm_ids, strict=True)
    originals = {position: vocabulary.tokens[label] for position, label in labels}
    middle = int(block.segment_a_length[0])
    return {
        "a": _split_at_masks(pieces, originals, range(1, middle - 1)),
        "b": _split_at_masks(pieces, originals, range(middle, len(pieces) - 1)),
        "is_random_next": bool(block.is_random_next[0]),
        "document_a": f"{int(block.document_a[0]):016x}",
        "document_b": f"{int(block.document_b[0]):016x}",
        "tokens": len(pieces),
        "masked": len(originals),
    }


def _split_at_masks(
    pieces: Sequence[str], originals: dict[int, str], positions: range
) -> list[Any]:
    """Splits a segment into masked pieces and the texts between them, in their order.

    Args:
        pieces: All pieces of the instance, as the model gets them: with [MASK] at most masked
            positions.
        originals: The original piece at each masked position.
        positions: The positions of the segment in the instance.

    Returns:
        A list. A masked piece is a dict with the keys `shown`, for what the model gets, and
        `original`. The pieces between two masked ones are one str, in which they are joined to
        words.

    Examples:
        "the dog bar [MASK] loud" with an original "##ked" gives
        `["the dog bar", {"shown": "[MASK]", "original": "##ked"}, " loud"]`.
    """
    items: list[Any] = []
    text = ""
    for position in positions:
        piece = originals.get(position, pieces[position])
        is_first = position == positions.start
        continues = piece.startswith(CONTINUATION)
        if is_first == continues:  # a word begins here, or the segment begins within one
            text += CONTINUATION if is_first else " "
        if position in originals:
            items += [text] if text else []
            items.append({"shown": pieces[position], "original": piece})
            text = ""
        else:
            text += piece.removeprefix(CONTINUATION)
    return items + ([text] if text else [])


def format_segment(items: Sequence[Any]) -> str:
    """Returns a segment as one line of text, in which masked words are in brackets.

    Args:
        items: The texts and masked pieces of the segment, as `describe_instance` returns them.
    """
    return "".join(item if isinstance(item, str) else _mark(**item) for item in items)


def _mark(shown: str, original: str) -> str:
    """Returns a masked piece as text: [shown>original], or [original] if both are the same.

    Args:
        shown: The piece that the model gets at this position.
        original: The piece that the model has to predict.
    """
    word = original.removeprefix(CONTINUATION)
    return f"[{word}]" if shown == original else f"[{shown}>{word}]"
