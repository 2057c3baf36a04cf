"""Documents that are nearly the same as given ones are found among the encoded documents."""

import random

import pytest

from pipeline.inspect.show import read_vocabulary
from pipeline.shards.dataset import open_dataset
from pipeline.text.cleaning import clean_text, document_id
from pipeline.tokens import similar_documents
from pipeline.tokens.provenance import find_tokens
from pipeline.tokens.similar_documents import find_similar
from tests.pipeline.conftest import WORDS
from tests.pipeline.programs import run, write_texts
from tests.pipeline.similar_texts import change_words, jaccard

pytestmark = pytest.mark.processes


def make_text(number):
    """15 sentences of 10 words."""
    drawn = random.Random(number)
    return " ".join(f"{' '.join(drawn.choices(WORDS, k=10))}." for _ in range(15))


ORIGINAL = make_text(0)
CLOSE = ORIGINAL.replace(ORIGINAL.split()[70], "village", 1)
RELATED = change_words(ORIGINAL, 0.4, 1, WORDS)
TEXTS = [ORIGINAL, CLOSE, RELATED, ORIGINAL, *(make_text(number) for number in range(1, 30))]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, vocab_file):
    folder = tmp_path_factory.mktemp("similar")
    write_texts(folder / "a.jsonl", TEXTS)
    flags = ("--input", folder / "a.jsonl", "--vocab", vocab_file, "--output", folder / "data")
    assert run("build", *flags, "--seq_lens", 64, "--workers", 1, "--part_bytes", 4096) == 0
    return open_dataset(str(folder / "data"))


def id_of(text):
    return document_id(clean_text(text))


def number_of(text):
    return int.from_bytes(id_of(text)[:8], "big")


@pytest.mark.parametrize("batch_bytes", [1, 5000, 1 << 23])
def test_a_document_with_few_other_words_is_found(dataset, monkeypatch, batch_bytes):
    monkeypatch.setattr(similar_documents, "_BATCH_BYTES", batch_bytes)
    assert jaccard(ORIGINAL, CLOSE) > 0.9
    assert jaccard(ORIGINAL, RELATED) < 0.3
    vocabulary = read_vocabulary(dataset)
    tokens = find_tokens(dataset)
    [found] = find_similar(tokens, vocabulary, [number_of(ORIGINAL)], 0.8)
    assert (found.id, found.other) == (id_of(CLOSE), id_of(ORIGINAL))
    assert found.similarity == pytest.approx(jaccard(ORIGINAL, CLOSE), abs=0.1)


def test_given_documents_and_unknown_ones_are_not_found(dataset):
    vocabulary = read_vocabulary(dataset)
    tokens = find_tokens(dataset)
    both = [number_of(ORIGINAL), number_of(CLOSE)]
    assert find_similar(tokens, vocabulary, both, 0.8) == []
    assert find_similar(tokens, vocabulary, [12345], 0.8) == []
    assert find_similar(tokens, vocabulary, [number_of(make_text(3))], 0.8) == []
