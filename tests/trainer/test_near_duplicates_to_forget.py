"""What `forget` says about documents that are nearly the same as those to forget."""

from types import SimpleNamespace

import pytest

from pipeline.tokens.similar_documents import SimilarDocument
from tests.trainer.tiny_dataset import write_tiny_dataset
from trainer.ask.origins import Origin
from trainer.forget.certificate import describe_limits
from trainer.forget.near_duplicates import (
    NearDuplicate,
    describe_near_duplicates,
    find_near_duplicates,
)
from trainer.forget.settings import ForgetSettings
from trainer.stream.order.source import open_mixture

SIMILAR = SimilarDocument(b"\xab" * 16, b"\x01" * 16, 0.934)


def test_each_is_named_with_id_source_and_likeness():
    origin = Origin("ab" * 16, "wiki", "en", "a.jsonl:7", "the first words")
    found = {
        "a": [NearDuplicate(SIMILAR, origin), NearDuplicate(SIMILAR, None)],
        "b": [],
        "c": None,
    }
    assert describe_near_duplicates(found, 0.8) == [
        "near-duplicates in a: 2 document(s) at least 0.8 like one of them, not forgotten unless"
        " listed too",
        f"  {'ab' * 16}  0.93 like {'01' * 8}, wiki (en), a.jsonl:7",
        f"  {'ab' * 16}  0.93 like {'01' * 8}",
        "near-duplicates in b: 0 document(s) at least 0.8 like one of them",
        "near-duplicates in c: not known, its encoded documents (tokens/) are gone",
    ]


def test_without_encoded_documents_it_cannot_be_said(tmp_path):
    mixture = open_mixture([str(write_tiny_dataset(tmp_path / "data"))], None)
    assert find_near_duplicates(mixture, [3], 0.8, None) == {"data": None}


@pytest.mark.parametrize(
    ("counts", "built", "sentence"),
    [
        ({"a": 2}, None, "2 document(s) of a were found to be nearly the same as a forgotten one"),
        ({"a": None}, None, "a was built without --near_duplicates, and nobody looked for"),
        ({}, 0.8, "a was built with --near_duplicates: of documents that are nearly the same it"),
    ],
)
def test_the_certificate_says_how_many_there_are(counts, built, sentence):
    settings = {} if built is None else {"near_duplicates": built}
    dataset = SimpleNamespace(
        folder=SimpleNamespace(exists=lambda _: False), manifest=SimpleNamespace(settings=settings)
    )
    limits = describe_limits([SimpleNamespace(name="a", dataset=dataset)], {}, counts)
    assert limits[-1].startswith(sentence)


def test_a_threshold_that_no_signature_can_tell_is_refused():
    with pytest.raises(ValueError, match=r"near_duplicates is 0.3; it must be 0.5 to 1, or null"):
        ForgetSettings("run", "list", "new", near_duplicates=0.3)
