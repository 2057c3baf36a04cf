"""The oracle is the whole reference program: every file it wrote, row by row (docs/parity.md section 4)."""

import io
import json
from pathlib import Path
from random import Random

import pytest
import zstandard

from tests.pipeline import reference
from tokenizer.vocab import Vocabulary, parse_vocab
from tokenizer.wordpiece import reference_tokenize

SEED = 12345


def read_documents(text: str, vocab: Vocabulary) -> list[reference.Document]:
    """A line is a sentence, a blank line ends a document, lines are stripped."""
    documents: list[reference.Document] = [[]]
    for line in map(str.strip, text.splitlines()):
        if line:
            documents[-1].append(
                [vocab.ids[token] for token in reference_tokenize(line, vocab, lower_case=True)]
            )
        else:
            documents.append([])
    return documents


@pytest.fixture(scope="module")
def vocab(shared_data: Path) -> Vocabulary:
    return parse_vocab(
        (shared_data / "data/bert_vocab/bert-base-uncased-vocab.txt").read_bytes(), "vocab.txt"
    )


@pytest.fixture(scope="module")
def documents(shared_data: Path, vocab: Vocabulary) -> list[reference.Document]:
    return read_documents(
        (shared_data / "data/bert_sample/sample_text.txt").read_text(encoding="utf-8"), vocab
    )


def read_golden(path: Path) -> list[reference.Instance]:
    with path.open("rb") as file:
        lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8")
        return [reference.Instance(*row[:4], bool(row[4])) for row in map(json.loads, lines)]


@pytest.mark.parametrize(
    ("max_seq_length", "max_predictions", "dupe_factor", "whole_words", "num_rows"),
    [
        (128, 20, 5, False, 60),
        (512, 76, 5, False, 39),
        (128, 20, 10, True, 122),
        (64, 10, 1, False, 17),
    ],
)
def test_serial_files(
    shared_data,
    documents,
    vocab,
    max_seq_length,
    max_predictions,
    dupe_factor,
    whole_words,
    num_rows,
):
    suffix = "_wwm" if whole_words else ""
    name = f"serial_sample_L{max_seq_length}_P{max_predictions}_dupe{dupe_factor}{suffix}_seed{SEED}.jsonl.zst"
    golden = read_golden(shared_data / "golden" / name)
    settings = reference.Settings(
        max_seq_length, max_predictions, dupe_factor=dupe_factor, whole_word_masking=whole_words
    )
    made = reference.create_instances(documents, as_reference(vocab), settings, Random(SEED))
    assert len(golden) == num_rows
    assert made == golden


def as_reference(vocab: Vocabulary) -> reference.Vocabulary:
    continuations = frozenset(i for i, token in enumerate(vocab.tokens) if token.startswith("##"))
    return reference.Vocabulary(
        len(vocab), vocab.cls_id, vocab.sep_id, vocab.mask_id, continuations
    )


def test_segments_are_glued_by_a_switch_only():
    vocab = reference.Vocabulary(500, 1, 2, 3, frozenset([20, 21]))
    tokens, segments = [1, 10, 20, 2, 21, 11, 2], [0, 0, 0, 0, 1, 1, 1]
    glued = reference.Settings(whole_word_masking=True)
    apart = reference.Settings(whole_word_masking=True, glue_across_segments=False)
    assert reference.list_words(tokens, segments, vocab, glued) == [[1, 2, 4], [5]]
    assert reference.list_words(tokens, segments, vocab, apart) == [[1, 2], [4], [5]]
