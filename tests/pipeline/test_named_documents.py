"""Documents that are named by digits of their ids, by their place, or by their text."""

import numpy as np
import pytest

from pipeline.inspect.show import read_vocabulary
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.shards.document_index import open_document_index
from pipeline.text.cleaning import clean_text, document_id
from pipeline.tokens.named_documents import (
    DocumentPlace,
    find_at_place,
    find_ids,
    ids_of_text,
    parse_name,
)
from pipeline.tokens.provenance import find_documents, find_tokens, read_opening


def id_of(text):
    return document_id(clean_text(text)).hex()


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("0123456789abcdef", "0123456789abcdef"),
        ("0" * 32, "0" * 32),
        ("wiki:a.jsonl:17", DocumentPlace("wiki", "a.jsonl:17")),
        ("wiki:s3://bucket/a.jsonl:17", DocumentPlace("wiki", "s3://bucket/a.jsonl:17")),
    ],
)
def test_names_of_documents(name, parsed):
    assert parse_name(name) == parsed


@pytest.mark.parametrize(
    "name", ["", "0123456789abcde", "0" * 33, "wiki", "wiki:", ":a", "ABCDEF" * 4]
)
def test_what_names_no_document(name):
    with pytest.raises(ValueError, match=r"names no document: expected the first 16 to 32 hex"):
        parse_name(name)


@pytest.mark.processes
def test_ids_by_digits(mixture, texts, tmp_path):
    ids = sorted(id_of(text) for text in texts)
    assert find_ids(mixture, "") == ids
    for document in ids:
        assert find_ids(mixture, document[:16]) == find_ids(mixture, document) == [document]
    assert find_ids(mixture, "0" * 32) == find_ids(mixture, "f" * 32) == []


@pytest.mark.processes
def test_ids_by_place(mixture, texts, mixture_config):
    tokens = find_tokens(mixture)
    folder = mixture_config.parent
    places = {f"news:{folder}/news.jsonl:3": texts[2], f"books:{folder}/books.jsonl:1": texts[60]}
    for name, text in places.items():
        assert find_at_place(mixture, tokens, parse_name(name)) == [id_of(text)]
    assert find_at_place(mixture, tokens, parse_name("news:news.jsonl:3")) == [id_of(texts[2])]
    for name in (
        "news:ews.jsonl:3",
        "news:news.jsonl",
        f"news:{folder}/news.jsonl:71",
        f"news:{folder}/books.jsonl:1",
        "other:x",
    ):
        assert find_at_place(mixture, tokens, parse_name(name)) == []


@pytest.mark.processes
def test_ids_by_text(mixture, texts):
    assert ids_of_text(mixture, texts[3], "here") == {id_of(texts[3])}
    spaced = f"\n  {texts[3].replace(' ', '   ')}\n\n"
    assert ids_of_text(mixture, spaced, "here") == {id_of(texts[3])}
    long = ("A sentence of some words. " * 400_000)[: 9 << 20]
    assert len(ids_of_text(mixture, long, "here")) >= 2
    with pytest.raises(ValueError, match="here holds no text"):
        ids_of_text(mixture, " \n", "here")


@pytest.mark.processes
def test_the_opening_of_a_document(mixture, texts):
    tokens = find_tokens(mixture)
    vocabulary = read_vocabulary(mixture)
    [document] = find_documents(tokens, [id_of(texts[5])])[id_of(texts[5])]
    words = texts[5].lower().split()
    assert read_opening(tokens, document, vocabulary, 4) == words[:4]


@pytest.mark.processes
def test_a_build_deals_documents_as_the_index_expects(mixture, tmp_path):
    """Every instance of every document is found by looking into the shards of its bucket alone."""
    dataset = open_dataset(mixture.folder.path)
    rows = set()
    for number, shard in enumerate(dataset.all_shards):
        row = 0
        for block in read_blocks(dataset, shard):
            for a, b in zip(block.document_a.tolist(), block.document_b.tolist(), strict=True):
                if shard.split == "train":
                    rows |= {(document, number, row) for document in (a, b)}
                row += 1
    index = open_document_index(dataset, "train", str(tmp_path))
    documents = sorted({document for document, _, _ in rows})
    found = set()
    for document in documents:
        one = index.find(np.array([document], np.uint64))
        found |= set(zip([document] * len(one), one.shard.tolist(), one.row.tolist(), strict=True))
    assert found == rows
    assert len({shard for _, shard, _ in rows}) == 8
