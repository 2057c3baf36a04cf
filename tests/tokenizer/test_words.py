from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import BertPreTokenizer

from tests.tokenizer.encoded_texts import TEXT
from tokenizer.word_rule import CASED, UNCASED, WordRule
from tokenizer.words import count_words


def test_words_and_punctuation_are_counted():
    assert count_words(["The cat's [MASK]\nthe CAT", "中国 café"], UNCASED) == {
        "the": 2, "cat": 2, "'": 1, "s": 1, "[": 1, "mask": 1, "]": 1, "中": 1, "国": 1, "cafe": 1
    }  # fmt: skip
    expected = {"The": 1, "cat": 1, "the": 1, "café": 1}
    assert count_words(["The cat the café"], CASED) == expected


@pytest.mark.parametrize("lower_case", [True, False])
@given(texts=st.lists(TEXT, max_size=4))
def test_words_are_those_of_the_library_on_the_whole_text(lower_case, texts):
    normalize = WordRule(lower_case).normalize
    split = BertPreTokenizer().pre_tokenize_str
    expected = Counter(word for text in texts for word, _ in split(normalize(text)))
    assert count_words(texts, WordRule(lower_case)) == expected
