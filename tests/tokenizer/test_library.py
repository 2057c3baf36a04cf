"""What the encoders rely on: how the `tokenizers` library treats what stands beside a character."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer.encoded_texts import TEXT, library_ids, load_library


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def library(request, character_vocab):
    return load_library(character_vocab, request.param)


@settings(deadline=None, max_examples=200)
@given(left=TEXT, right=TEXT)
def test_the_library_treats_what_stands_between_spaces_on_its_own(library, left, right):
    """What the encoder relies on: no rule for marks, case or CJK looks across a space."""
    together, alone_left, alone_right = library_ids(library, [f"{left} {right}", left, right])
    assert together == alone_left + alone_right


@settings(deadline=None, max_examples=200)
@given(left=TEXT, right=TEXT, mark=st.sampled_from(string.punctuation))
def test_the_library_takes_ascii_punctuation_for_words(library, left, right, mark):
    joined, spaced = library_ids(library, [f"{left}{mark}{right}", f"{left} {mark} {right}"])
    assert joined == spaced
