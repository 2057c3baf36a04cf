# ruff: noqa: RUF001 -- letters and signs that resemble ASCII are the point here
import io
import itertools
import pickle
import string
import sys
import zipfile

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tokenizer import chunk_matcher, chunk_table, encode
from tokenizer.encode import Encoder
from tokenizer.export import tokenizer_json
from tokenizer.vocab import Vocabulary
from tokenizer.wordpiece import reference_tokenize

SPECIAL_TEXTS = [
    "",
    " ",
    "\0",
    "\n\t\r\x0b\x0c\x1c\x7f\x85\u2028",
    "a\0b\x07c\x1fd",
    "line\none\r\ntwo\n",
    "[MASK] [CLS][SEP]the[PAD] [UNK] [mask] [unused0]",
    "##s the##s",
    "Cats, cat's (cats) CATS—“cat” ‘cat’ a–b …",
    "e\u0301 E\u0301\u0323 ,\u0301 \u0301a a\u0301\u0323\u0301 -\u0323",
    "ΟΔΟΣ ΣΑΣ Σ σς Σ, ΑΣ.",
    "İstanbul ǅ ﬁ ß ẞ K Å ΐ",
    "中国cat中 ，。国\U0002b820\U00020000豈",
    "a\u00a0b\u3000c\u2003d\u200be\ufefff\u00adg",
    "\ue000\ufffd\uffff\U0010ffff",
    "👩‍👩‍👧 🇬🇧 é️",
    "한국어 각 ก็ ไทย हिन्दी",
    "a" * 200 + " " + "a" * 201 + " " + "é" * 200 + " " + "é" * 201 + " " + "cat" * 70,
    "中" * 500,
]
TEXT = st.one_of(
    st.text(),
    st.text(st.sampled_from("abcé σςΣAÉ中国，.,![]#'\u0301\u0323\u2003\u200b\0\n\t\r\x0b\u0085\ue000“–")),
    st.lists(st.sampled_from(SPECIAL_TEXTS)).map(" ".join),
)


def load_library(vocab: Vocabulary, lower_case: bool) -> Tokenizer:
    """The exported file, as the pipeline is defined by it."""
    library = Tokenizer.from_str(tokenizer_json(vocab, lower_case))
    library.encode_special_tokens = True
    return library


def library_ids(library: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [library.encode(text, add_special_tokens=False).ids for text in texts]


def encoded(encoder: Encoder, texts: list[str]) -> list[list[int]]:
    values, lengths = encoder.encode_sentences(texts)
    return [ids.tolist() for ids in np.split(values, np.cumsum(lengths)[:-1])] if texts else []


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def character_pair(request, character_vocab):
    return Encoder(character_vocab, request.param), load_library(character_vocab, request.param)


@pytest.fixture(scope="module")
def bert_pair(bert_vocab):
    return Encoder(*bert_vocab), load_library(*bert_vocab)


def test_ids_and_lengths(small_vocab):
    values, lengths = Encoder(small_vocab, lower_case=True).encode_sentences(["The cats", "", "unaffable, [MASK]!"])
    tokens = [small_vocab.tokens[index] for index in values]
    assert tokens == ["the", "cat", "##s", "un", "##aff", "##able", ",", "[", "[UNK]", "]", "!"]
    assert lengths.tolist() == [3, 0, 8]
    assert (values.dtype, lengths.dtype) == (np.uint16, np.uint32)


def test_no_sentences(small_vocab):
    values, lengths = Encoder(small_vocab, lower_case=True).encode_sentences([])
    assert (values.size, lengths.size, values.dtype) == (0, 0, np.uint16)


def test_large_vocabularies_have_wide_ids(small_vocab):
    vocab = Vocabulary(small_vocab.tokens + tuple(f"x{n}" for n in range(70_000)))
    ids = Encoder(vocab, lower_case=True).encode("the x69999")
    assert ids.dtype == np.uint32
    assert ids.tolist() == [vocab.ids["the"], len(vocab) - 1]


def test_special_texts(character_pair):
    encoder, library = character_pair
    assert encoded(encoder, SPECIAL_TEXTS) == library_ids(library, SPECIAL_TEXTS)


@settings(deadline=None, max_examples=500)
@given(texts=st.lists(TEXT, max_size=4))
def test_any_text(character_pair, texts):
    encoder, library = character_pair
    assert encoded(encoder, texts) == library_ids(library, texts)


@settings(deadline=None)
@given(text=st.text(st.characters(codec="ascii")), lower_case=st.booleans())
def test_the_reference_on_ascii(small_vocab, text, lower_case):
    ids = Encoder(small_vocab, lower_case).encode(text)
    assert [small_vocab.tokens[index] for index in ids] == reference_tokenize(text, small_vocab, lower_case)


@settings(deadline=None, max_examples=500)
@given(left=TEXT, right=TEXT)
def test_the_library_treats_what_stands_between_spaces_on_its_own(character_pair, left, right):
    """What the encoder relies on: no reordering of marks, no casing rule and no CJK rule looks across a space."""
    _, library = character_pair
    together, alone_left, alone_right = library_ids(library, [f"{left} {right}", left, right])
    assert together == alone_left + alone_right


@settings(deadline=None, max_examples=500)
@given(left=TEXT, right=TEXT, mark=st.sampled_from(string.punctuation))
def test_the_library_takes_ascii_punctuation_for_words(character_pair, left, right, mark):
    _, library = character_pair
    joined, spaced = library_ids(library, [f"{left}{mark}{right}", f"{left} {mark} {right}"])
    assert joined == spaced


@pytest.mark.slow
def test_every_code_point(character_pair):
    encoder, library = character_pair
    for start in range(0, sys.maxunicode + 1, 1 << 14):
        characters = [chr(c) for c in range(start, start + (1 << 14)) if not 0xD800 <= c < 0xE000]
        texts = ["".join(f"a{c}b {c} " for c in characters[i : i + 64]) for i in range(0, len(characters), 64)]
        expected = [encoding.ids for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]
        assert encoded(encoder, texts) == expected, f"between {start:#x} and {start + (1 << 14):#x}"


def test_human_rights_in_all_languages(bert_pair, shared_data):
    with zipfile.ZipFile(shared_data / "data/udhr2/udhr2.zip") as archive:
        texts = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".txt")]
    assert len(texts) > 380
    encoder, library = bert_pair
    lines = [line for text in texts for line in text.splitlines()]
    assert encoded(encoder, lines) == library_ids(library, lines)


@pytest.mark.parametrize("name", ["wiki_zh/wiki_zh_00.txt.zst", "wiki_en/wiki_en_00.txt.zst"])
def test_wikipedia(bert_pair, shared_data, name):
    data = zstandard.ZstdDecompressor().stream_reader((shared_data / "data" / name).read_bytes()).read(1 << 20)
    lines = io.StringIO(data.decode(errors="ignore")).readlines()
    encoder, library = bert_pair
    assert encoded(encoder, lines) == library_ids(library, lines)


def test_a_full_cache_changes_nothing(monkeypatch, small_vocab):
    encoder = Encoder(small_vocab, lower_case=True)
    expected = encoded(encoder, SPECIAL_TEXTS)
    monkeypatch.setattr(encode, "NUM_CHARACTERS_AT_ONCE", 20)
    for limit in ("MAX_CHUNKS", "MAX_BYTES"):
        with monkeypatch.context() as limited:
            limited.setattr(chunk_table, limit, 3)
            limited.setattr(chunk_matcher, "MAX_CACHED_PARTS", 3)
            small = Encoder(small_vocab, lower_case=True)
            assert encoded(small, SPECIAL_TEXTS) == expected
            assert len(small._chunks) < len(encoder._chunks) / 2


def test_chunks_that_share_a_slot_are_told_apart(monkeypatch, character_pair):
    encoder, library = character_pair
    monkeypatch.setattr(chunk_table, "_SLOT_BITS", 2)
    crowded = Encoder(encoder.vocab, encoder.lower_case)
    words = ["".join(letters) for size in (1, 2, 3) for letters in itertools.product("abcé", repeat=size)]
    texts = [" ".join(words), *words, *words, " ".join(reversed(words))]
    assert encoded(crowded, texts) == library_ids(library, texts)


@pytest.mark.parametrize("length", [7, 8, 9, 15, 16, 17, 18, 31, 64, 65])
def test_chunks_of_every_length(character_pair, length):
    encoder, library = character_pair
    texts = ["ab" * (length // 2) + "c" * (length % 2), "a" * length, "a" * (length - 1) + "b", "é" * length]
    assert encoded(encoder, texts * 2) == library_ids(library, texts * 2)


def test_a_word_of_the_vocabulary_beyond_the_limit_is_unknown(small_vocab):
    vocab = Vocabulary((*small_vocab.tokens, "x" * 201, "y" * 200))
    assert Encoder(vocab, lower_case=True).encode("x" * 201 + " " + "y" * 200).tolist() == [
        vocab.unk_id,
        len(vocab) - 1,
    ]


def test_many_groups_equal_one(monkeypatch, character_pair):
    encoder, _ = character_pair
    expected = encoded(encoder, SPECIAL_TEXTS * 3)
    for size in (1, 7, 100):
        monkeypatch.setattr(encode, "NUM_CHARACTERS_AT_ONCE", size)
        assert encoded(encoder, SPECIAL_TEXTS * 3) == expected


def test_pickles_without_its_cache(small_vocab):
    encoder = Encoder(small_vocab, lower_case=True)
    empty = len(pickle.dumps(encoder))
    encoder.encode_sentences(SPECIAL_TEXTS)
    data = pickle.dumps(encoder)
    assert len(data) == empty
    assert encoded(pickle.loads(data), SPECIAL_TEXTS) == encoded(encoder, SPECIAL_TEXTS)
