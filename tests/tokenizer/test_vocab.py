import hashlib

import numpy as np
import pytest

from tokenizer.vocab import Vocabulary, parse_vocab

TEXT = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##s\n"


def test_a_line_number_is_an_id():
    vocab = parse_vocab(TEXT.encode(), "vocab.txt")
    ids = vocab.pad_id, vocab.unk_id, vocab.cls_id, vocab.sep_id, vocab.mask_id
    assert ids == (0, 1, 2, 3, 4)
    assert vocab.ids["##s"] == 6
    assert len(vocab) == 7


@pytest.mark.parametrize("text", [TEXT, TEXT.removesuffix("\n"), TEXT.replace("\n", "\r\n")])
def test_text_and_digest_are_those_of_a_file_with_plain_line_ends(text):
    vocab = parse_vocab(text.encode(), "vocab.txt")
    assert vocab.to_text() == TEXT
    assert vocab.sha256 == hashlib.sha256(TEXT.encode()).hexdigest()


def test_only_newlines_end_lines():
    expected = ("a\u2028b", "\u0085")
    assert parse_vocab((TEXT + "a\u2028b\n\u0085\n").encode(), "vocab.txt").tokens[-2:] == expected


@pytest.mark.parametrize(("size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_ids_have_the_narrowest_type(size, dtype):
    assert Vocabulary(tuple(map(str, range(size)))).dtype == dtype


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"v\.txt: the vocabulary is empty"),
        (b"\n", r"v\.txt: the vocabulary is empty"),
        (TEXT.encode() + b"caf\xe9\n", r"v\.txt: line 8 is not UTF-8"),
        (TEXT.encode() + b"\nx\n", r"v\.txt: line 8 is empty"),
        (TEXT.encode() + b"the\n", r"v\.txt: token 'the' is on lines 6 and 8"),
        (b"[PAD]\n[UNK]\n[CLS]\nthe\n", r"v\.txt: no line is \[SEP\], \[MASK\] \(4 lines\)"),
        (TEXT.lower().encode(), r"no line is \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]"),
    ],
)
def test_faults_are_named(data, message):
    with pytest.raises(ValueError, match=message):
        parse_vocab(data, "v.txt")
