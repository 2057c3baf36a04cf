import io
import pickle
import sys
import zipfile

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizer.encoded_texts import SPECIAL_TEXTS, TEXT, encoded, library_ids, load_library
from tests.tokenizer.reference import reference_tokenize, split_word
from tokenizer.compiled import VARIABLE, load
from tokenizer.compiled_encoder import CompiledEncoder
from tokenizer.encode import Encoder, LibraryEncoder
from tokenizer.vocab import SPECIAL_TOKENS, Vocabulary
from tokenizer.word_rule import CASED, UNCASED, WordRule


@pytest.fixture(scope="module", params=["library", "compiled"], autouse=True)
def path(request):
    """Every test here holds both paths; which one an encoder takes is settled when it is made."""
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "compiled" and load("tokenizer._matcher") is None:
            pytest.skip("the compiled matcher is not built, or BEAMBERT_COMPILED=0")
        patched.setenv(VARIABLE, "1" if request.param == "compiled" else "0")
        yield request.param


# Of large texts the library path would only be compared with itself.
compiled_path = pytest.mark.parametrize("path", ["compiled"], indirect=True, scope="module")


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def character_pair(request, path, character_vocab):
    return Encoder(character_vocab, WordRule(request.param)), load_library(
        character_vocab, WordRule(request.param)
    )


@pytest.fixture(scope="module")
def bert_pair(path, bert_vocab):
    return Encoder(*bert_vocab), load_library(*bert_vocab)


def test_ids_and_lengths(small_vocab):
    encoder = Encoder(small_vocab, UNCASED)
    values, lengths = encoder.encode_sentences(["The cats", "", "unaffable, [MASK]!"])
    tokens = [small_vocab.tokens[index] for index in values]
    assert tokens == ["the", "cat", "##s", "un", "##aff", "##able", ",", "[", "[UNK]", "]", "!"]
    assert lengths.tolist() == [3, 0, 8]
    assert (values.dtype, lengths.dtype) == (np.uint16, np.uint32)
    values, lengths = encoder.encode_sentences([])
    assert (values.size, lengths.size, values.dtype) == (0, 0, np.uint16)


def test_a_lone_surrogate_is_refused(small_vocab):
    encoder = Encoder(small_vocab, UNCASED)
    with pytest.raises(UnicodeEncodeError):
        encoder.encode_sentences(["the cat", "the \ud800"])
    assert encoder.encode("the").tolist() == [small_vocab.ids["the"]]


def test_large_vocabularies_have_wide_ids(small_vocab):
    vocab = Vocabulary(small_vocab.tokens + tuple(f"x{n}" for n in range(70_000)))
    ids = Encoder(vocab, UNCASED).encode("the x69999")
    assert ids.dtype == np.uint32
    assert ids.tolist() == [vocab.ids["the"], len(vocab) - 1]


def test_special_texts(character_pair):
    encoder, library = character_pair
    assert encoded(encoder, SPECIAL_TEXTS) == library_ids(library, SPECIAL_TEXTS)


@given(texts=st.lists(TEXT, max_size=4))
def test_any_text(character_pair, texts):
    encoder, library = character_pair
    assert encoded(encoder, texts) == library_ids(library, texts)


@given(text=st.text(st.characters(codec="ascii")), lower_case=st.booleans())
def test_the_reference_on_ascii(small_vocab, text, lower_case):
    tokens = [
        small_vocab.tokens[index]
        for index in Encoder(small_vocab, WordRule(lower_case)).encode(text)
    ]
    assert tokens == reference_tokenize(text, small_vocab, lower_case)


# Planes 4 to 13 are unassigned as a whole, and 15 and 16 private but for their last two: of them
# each 61st is enough.
PLANES = {plane: 1 if plane in (0, 1, 2, 3, 14) else 61 for plane in range(17)}


@compiled_path
@pytest.mark.parametrize("character_pair", [True], indirect=True, ids=["uncased"])
@pytest.mark.processes
def test_every_code_point_of_the_planes_in_use(character_pair):
    encoder, library = character_pair
    for start in range(0, sys.maxunicode + 1, 1 << 14):
        step, stop = PLANES[start >> 16], start + (1 << 14)
        chosen = {*range(start, stop, step), *range(start, start + 64), *range(stop - 64, stop)}
        characters = [chr(c) for c in sorted(chosen) if not 0xD800 <= c < 0xE000]
        groups = (characters[i : i + 64] for i in range(0, len(characters), 64))
        texts = ["".join(f"a{c}b {c} " for c in group) for group in groups]
        expected = [each.ids for each in library.encode_batch_fast(texts, add_special_tokens=False)]
        assert encoded(encoder, texts) == expected, f"between {start:#x} and {start + (1 << 14):#x}"


@compiled_path
def test_human_rights_in_all_languages(bert_pair, shared_data):
    with zipfile.ZipFile(shared_data / "data/udhr2/udhr2.zip") as archive:
        texts = [archive.read(name).decode() for name in archive.namelist() if ".txt" in name]
    assert len(texts) > 380
    encoder, library = bert_pair
    lines = [line for text in texts for line in text.splitlines()[:50]]
    assert encoded(encoder, lines) == library_ids(library, lines)


@compiled_path
@pytest.mark.parametrize("name", ["wiki_zh/wiki_zh_00.txt.zst", "wiki_en/wiki_en_00.txt.zst"])
def test_wikipedia(bert_pair, shared_data, name):
    packed = (shared_data / "data" / name).read_bytes()
    data = zstandard.ZstdDecompressor().stream_reader(packed).read(1 << 20)
    lines = io.StringIO(data.decode(errors="ignore")).readlines()
    encoder, library = bert_pair
    assert encoded(encoder, lines) == library_ids(library, lines)


@given(
    pieces=st.sets(st.text("abé", min_size=1, max_size=6), max_size=30),
    others=st.sets(st.text("abé", min_size=1, max_size=6), max_size=30),
    words=st.lists(st.text("abé", min_size=1, max_size=40), max_size=20),
)
def test_the_reference_on_words_of_few_letters(pieces, others, words):
    """Where pieces overlap in every way, and greedy matching often ends where it finds none."""
    continuing = (f"##{piece}" for piece in sorted(others))
    vocab = Vocabulary((*SPECIAL_TOKENS, *sorted(pieces), *continuing))
    expected = [[vocab.ids[piece] for piece in split_word(word, vocab)] for word in words]
    assert encoded(Encoder(vocab, CASED), words) == expected


def test_a_word_of_the_vocabulary_beyond_the_limit_is_unknown(small_vocab):
    vocab = Vocabulary((*small_vocab.tokens, "x" * 201, "y" * 200))
    expected = [vocab.unk_id, len(vocab) - 1]
    assert Encoder(vocab, UNCASED).encode("x" * 201 + " " + "y" * 200).tolist() == expected


def test_the_path_is_the_one_asked_for(path, small_vocab):
    expected = {"library": LibraryEncoder, "compiled": CompiledEncoder}[path]
    assert type(Encoder(small_vocab, UNCASED).path) is expected


def test_pickles_without_its_cache(small_vocab):
    encoder = Encoder(small_vocab, UNCASED)
    encoder.encode_sentences(SPECIAL_TEXTS)
    data = pickle.dumps(encoder)
    assert len(data) == len(pickle.dumps(Encoder(small_vocab, UNCASED)))
    assert encoded(pickle.loads(data), SPECIAL_TEXTS) == encoded(encoder, SPECIAL_TEXTS)
