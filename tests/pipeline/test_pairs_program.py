"""The oracle is the whole reference program: every file it wrote, row by row (parity.md 4)."""

from pathlib import Path
from random import Random

import pytest

from tests.pipeline import reference
from tests.pipeline.test_pairs import read_rows
from tests.tokenizer.reference import reference_tokenize
from tokenizer.vocab import Vocabulary, parse_vocab

SEED = 12345


@pytest.fixture(scope="module")
def vocab(shared_data: Path) -> Vocabulary:
    path = shared_data / "data/bert_vocab/bert-base-uncased-vocab.txt"
    return parse_vocab(path.read_bytes(), "vocab.txt")


@pytest.fixture(scope="module")
def documents(shared_data: Path, vocab: Vocabulary) -> list[reference.Document]:
    """A line is a sentence, a blank line ends a document, lines are stripped."""
    text = (shared_data / "data/bert_sample/sample_text.txt").read_text(encoding="utf-8")
    documents: list[reference.Document] = [[]]
    for line in map(str.strip, text.splitlines()):
        if line:
            tokens = reference_tokenize(line, vocab, lower_case=True)
            documents[-1].append([vocab.ids[token] for token in tokens])
        else:
            documents.append([])
    return documents


@pytest.mark.parametrize(
    ("length", "most", "dupe_factor", "whole_words", "num_rows"),
    [(128, 20, 5, "", 60), (512, 76, 5, "", 39), (128, 20, 10, "_wwm", 122), (64, 10, 1, "", 17)],
)
def test_serial_files(
    shared_data, documents, vocab, length, most, dupe_factor, whole_words, num_rows
):
    name = f"serial_sample_L{length}_P{most}_dupe{dupe_factor}{whole_words}_seed{SEED}.jsonl.zst"
    rows = read_rows(shared_data / "golden" / name)
    golden = [reference.Instance(*row[:4], bool(row[4])) for row in rows]
    counts = {"dupe_factor": dupe_factor, "whole_word_masking": bool(whole_words)}
    settings = reference.Settings(length, most, **counts)
    continuations = frozenset(i for i, token in enumerate(vocab.tokens) if token.startswith("##"))
    special = vocab.cls_id, vocab.sep_id, vocab.mask_id
    theirs = reference.Vocabulary(len(vocab), *special, continuations)
    assert len(golden) == num_rows
    assert reference.create_instances(documents, theirs, settings, Random(SEED)) == golden


def test_segments_are_glued_by_a_switch_only():
    vocab = reference.Vocabulary(500, 1, 2, 3, frozenset([20, 21]))
    tokens, segments = [1, 10, 20, 2, 21, 11, 2], [0, 0, 0, 0, 1, 1, 1]
    glued = reference.Settings(whole_word_masking=True)
    apart = reference.Settings(whole_word_masking=True, glue_across_segments=False)
    assert reference.list_words(tokens, segments, vocab, glued) == [[1, 2, 4], [5]]
    assert reference.list_words(tokens, segments, vocab, apart) == [[1, 2], [4], [5]]
