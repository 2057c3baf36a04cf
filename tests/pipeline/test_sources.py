"""Several sources in one build: settings, weights, who owns a copy."""

import itertools
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents.source import UNIT, Source
from pipeline.documents.sources import apply_weights, choose_uses, count_factors, count_uses
from pipeline.instances.build_bucket import build_bucket, gather_documents
from pipeline.seeds import seed_for
from pipeline.settings import BuildSettings
from pipeline.stages.build_shards import instance_rule
from pipeline.text.cleaning import document_id
from pipeline.tokens.buckets import choose_num_buckets
from pipeline.tokens.token_parts import TokenizedDocument
from tests.pipeline.programs import run
from tokenizer.vocab import parse_vocab

WEIGHTS = st.integers(1, 100 * UNIT)
IDS = st.binary(min_size=16, max_size=16)
GOOD = {"name": "a", "input": ["x"]}


@given(WEIGHTS, IDS, st.integers(0, 2**63), st.integers(0, 99))
def test_uses_are_those_of_the_formula_in_exact_fractions(weight, document, seed, pass_index):
    start = Fraction(seed_for(seed, "uses", 0, document.hex()) % 2**32, 2**32)
    w = Fraction(weight, UNIT)
    expected = (start + w * (pass_index + 1)).__floor__() - (start + w * pass_index).__floor__()
    assert count_uses(weight, pass_index, seed, document) == expected


def test_uses_are_numbered_within_a_document():
    ids = [bytes([number]) * 16 for number in range(4)]
    sources = np.array([0, 1, 0, 1], np.uint8)
    expected = ([0, 1, 1, 1, 2, 3, 3, 3], [0, 0, 1, 2, 0, 0, 1, 2])
    assert choose_uses(ids, sources, [UNIT, 3 * UNIT], 1, 0) == expected


def test_word_counts_are_multiplied_by_the_smallest_whole_numbers():
    assert count_factors([UNIT]) == count_factors([7 * UNIT]) == [1]
    assert count_factors([UNIT, UNIT]) == [1, 1]
    assert count_factors([UNIT, UNIT // 2, 3 * UNIT // 2]) == [2, 1, 3]
    assert count_factors([UNIT, 333_333]) == [1000, 333]
    assert count_factors([100 * UNIT, 1]) == [100_000, 1]


def test_buckets_are_planned_from_what_a_pass_uses():
    assert apply_weights((), [10, 5], [1000, 500]) == (1500, 15)
    assert apply_weights((UNIT // 2, 3 * UNIT), [10, 5], [1000, 500]) == (2500, 10)
    by_prefix = np.full(4096, 100)
    for used, expected in (((), 8), ((409_600,), 8), ((100,), 1)):
        assert choose_num_buckets(by_prefix, 2**30, None, "", *used) == expected


@pytest.fixture
def refused(tmp_path, capsys):
    """refused(sources, said, *flags)"""

    def call(sources, said, *flags):
        (tmp_path / "c.yaml").write_text(json.dumps({"sources": sources}))  # JSON is YAML too
        words = ("--config", tmp_path / "c.yaml", "--output", tmp_path / "data")
        assert run("build", *words, *flags) == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "data").exists()

    return call


@pytest.mark.processes
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": " "}, "has no name"),
        ({"weight": 0}, "weight is 0.0, expected more than 0 and at most 100"),
        ({"weight": 100.5}, "weight is 100.5"),
        ({"weight": -1}, "weight is -1.0"),
        ({"weight": ".nan"}, "weight"),
        ({"weight": 0.1234567}, "expected at most 6 decimals"),
        ({"input": []}, "c.yaml:1: sources[0] ('a'): input is empty"),
        ({"weigth": 2}, "unknown key sources[0].weigth; did you mean sources[0].weight?"),
        ({"format": "docx"}, "docx"),
    ],
)
def test_a_source_that_cannot_be_is_refused(refused, changes, said):
    refused([GOOD | changes], said)


@pytest.mark.processes
def test_sources_that_cannot_be_are_refused(refused, corpus):
    refused([GOOD], "both input (y) and sources (a) are given", "--input", "y")
    refused([GOOD], "language: with sources this belongs to each of them", "--language", "zh")
    refused([{"name": "a"}], "input")
    twice = [GOOD, GOOD | {"input": ["y"]}]
    refused(twice, "c.yaml:1: sources[1] ('a'): sources[0] has that name too")
    refused([GOOD | {"name": str(number)} for number in range(256)], "found 256, at most 255")
    both = [GOOD | {"input": [str(corpus)]}, {"name": "b", "input": [f"{corpus}/b.*"]}]
    refused(both, f"{corpus}/b.jsonl is in the input of the sources a and b")


def test_input_is_one_source_and_changes_no_settings():
    plain = BuildSettings("o", ["x"], language="de", text_field="body")
    source = Source("web", ["x"], language="de", text_field="body", licence="CC0-1.0")
    named = BuildSettings("o", sources=[source])
    assert plain.corpus == (Source("input", ["x"], language="de", text_field="body"),)
    assert plain.content("v", "d") == named.content("v", "d")
    assert "sources" not in plain.content("v", "d")


def test_names_weights_and_languages_of_a_mixture_are_content():
    def content(*sources):
        return BuildSettings("o", sources=list(sources)).content("v", "d")

    a, b = Source("a", ["x"]), Source("b", ["y"])
    others = [Source("c", ["y"]), Source("b", ["y"], 2), Source("b", ["y"], language="zh")]
    contents = [content(a, b), content(b, a), content(Source("a", ["x"], 2))]
    contents += [content(a, other) for other in others]
    assert all(one != other for one, other in itertools.combinations(contents, 2))
    assert content(a, b) == content(a, Source("b", ["z"], licence="CC0-1.0"))


def make_document(number, source):
    lengths = np.array([9 + number % 7] * 12, np.uint16)
    # A token says which document it is from.
    tokens = np.full(int(lengths.sum()), 5 + number, np.uint16)
    return TokenizedDocument(document_id(str(number)), 10, lengths, tokens, source)


@pytest.fixture(scope="module")
def rule(vocab_file):
    vocab = parse_vocab(vocab_file.read_bytes(), "vocab.txt")
    return instance_rule(BuildSettings("o", ["x"]), vocab, 64)


def rows_of(documents, rule, pass_index=0, **changes):
    own = type(rule)(**(vars(rule) | changes))
    blocks = build_bucket(gather_documents(documents), own, pass_index, "b")
    return [block.slice(row, row + 1) for block in blocks for row in range(block.num_instances)]


def test_a_copy_belongs_to_the_source_listed_first_in_any_order():
    documents = [make_document(1, 2), make_document(1, 1), make_document(2, 0), make_document(1, 1)]
    for order in itertools.permutations(documents):
        gathered = gather_documents(order)
        expected = {document_id("1"): 1, document_id("2"): 0}
        assert dict(zip(gathered.ids, gathered.sources.tolist(), strict=True)) == expected


def test_a_weight_uses_documents_again_with_other_pairs(rule):
    documents = [make_document(number, number % 2) for number in range(20)]
    prefix = {int.from_bytes(each.id[:8], "big"): each.source for each in documents}
    once = rows_of(documents, rule)
    thrice = rows_of(documents, rule, weights=(UNIT, 3 * UNIT))
    before, after = (Counter(prefix[int(r.document_a[0])] for r in rows) for rows in (once, thrice))
    assert after[0] == before[0]
    assert after[1] / before[1] == pytest.approx(3, rel=0.2)
    key = int.from_bytes(documents[1].id[:8], "big")
    own = [row for row in thrice if int(row.document_a[0]) == key]
    shapes = [(int(r.segment_a_length[0]), len(r.input_ids), r.is_random_next[0]) for r in own]
    assert len(set(shapes)) > len(own) / 3


def test_a_random_b_is_never_of_the_same_document_and_comes_from_unused_ones_too(rule):
    documents = [make_document(number, number % 2) for number in range(12)]
    # A millionth: source 1 makes no pairs of its own.
    rows = rows_of(documents, rule, weights=(UNIT, 1))
    prefix = {int.from_bytes(each.id[:8], "big"): each.source for each in documents}
    assert {prefix[int(row.document_a[0])] for row in rows} == {0}
    assert {prefix[int(row.document_b[0])] for row in rows if row.is_random_next[0]} == {0, 1}
    assert all(row.is_random_next[0] == (row.document_a[0] != row.document_b[0]) for row in rows)


def test_weight_one_gives_the_bytes_of_no_weights(rule):
    documents = [make_document(number, number % 2) for number in range(20)]
    for pass_index in range(2):
        plain = rows_of(documents, rule, pass_index)
        weighted = rows_of(documents, rule, pass_index, weights=(UNIT, UNIT))
        one, other = ([row.input_ids.tolist() for row in rows] for rows in (plain, weighted))
        assert one == other


def test_a_bucket_that_a_pass_does_not_use_is_an_error(rule):
    documents = [make_document(number, 0) for number in range(3)]
    with pytest.raises(ValueError, match="pass 0 uses none of the 3 documents of b: the weights"):
        rows_of(documents, rule, weights=(1,))


@pytest.mark.processes
@pytest.mark.parametrize("name", ["wikipedia-books", "wikipedia-en-zh"])
def test_configurations_of_mixtures_ask_for_the_users_files(name, tmp_path, capsys):
    config = Path(__file__).parents[2] / f"configs/data/{name}.yaml"
    assert run("build", "--config", config, "--output", tmp_path / "data") == 2
    said = "/path/to/enwiki-latest-pages-articles-multistream.xml.bz2: found no file"
    assert said in capsys.readouterr().err
