"""What the numpy path remembers, and how it goes about; test_encode.py holds its ids."""

import itertools

import pytest

from tests.tokenizer.encoded_texts import SPECIAL_TEXTS, encoded, library_ids, load_library
from tokenizer import chunk_matcher, chunk_table, numpy_encoder
from tokenizer.numpy_encoder import NumpyEncoder


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def lower_case(request):
    return request.param


def test_a_full_cache_changes_nothing(monkeypatch, small_vocab):
    encoder = NumpyEncoder(small_vocab, lower_case=True)
    expected = encoded(encoder, SPECIAL_TEXTS)
    monkeypatch.setattr(numpy_encoder, "NUM_CHARACTERS_AT_ONCE", 20)
    for limit in ("MAX_CHUNKS", "MAX_BYTES"):
        with monkeypatch.context() as limited:
            limited.setattr(chunk_table, limit, 3)
            limited.setattr(chunk_matcher, "MAX_CACHED_PARTS", 3)
            small = NumpyEncoder(small_vocab, lower_case=True)
            assert encoded(small, SPECIAL_TEXTS) == expected
            assert len(small._chunks) < len(encoder._chunks) / 2


def test_chunks_that_share_a_slot_are_told_apart(monkeypatch, character_vocab, lower_case):
    monkeypatch.setattr(chunk_table, "_SLOT_BITS", 2)
    crowded = NumpyEncoder(character_vocab, lower_case)
    words = ["".join(letters) for size in (1, 2, 3) for letters in itertools.product("abcé", repeat=size)]
    texts = [" ".join(words), *words, *words, " ".join(reversed(words))]
    assert encoded(crowded, texts) == library_ids(load_library(character_vocab, lower_case), texts)


def test_many_groups_equal_one(monkeypatch, character_vocab, lower_case):
    encoder = NumpyEncoder(character_vocab, lower_case)
    expected = encoded(encoder, SPECIAL_TEXTS * 3)
    for size in (1, 7, 100):
        monkeypatch.setattr(numpy_encoder, "NUM_CHARACTERS_AT_ONCE", size)
        assert encoded(encoder, SPECIAL_TEXTS * 3) == expected
