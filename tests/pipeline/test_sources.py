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


# The weight formula


@given(WEIGHTS, IDS, st.integers(0, 2**63), st.integers(1, 20))
def test_every_document_is_used_floor_or_ceil_times(weight, document, seed, passes):
    uses = [count_uses(weight, pass_index, seed, document) for pass_index in range(passes)]
    assert all(weight // UNIT <= each <= -(-weight // UNIT) for each in uses)
    assert abs(sum(uses) - Fraction(weight * passes, UNIT)) < 1


@given(WEIGHTS, IDS, st.integers(0, 2**63), st.integers(0, 99))
def test_uses_are_those_of_the_formula_in_exact_fractions(weight, document, seed, pass_index):
    start = Fraction(seed_for(seed, "uses", 0, document.hex()) % 2**32, 2**32)
    w = Fraction(weight, UNIT)
    expected = (start + w * (pass_index + 1)).__floor__() - (start + w * pass_index).__floor__()
    assert count_uses(weight, pass_index, seed, document) == expected


def test_half_the_documents_are_in_every_second_pass():
    ids = [document_id(str(number)) for number in range(100)]
    sources = np.zeros(100, np.uint8)
    chosen = [set(choose_uses(ids, sources, [UNIT // 2], 1, number)[0]) for number in range(4)]
    assert chosen[0] | chosen[1] == set(range(100))
    assert not chosen[0] & chosen[1]
    assert chosen[:2] == chosen[2:]


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
    assert (
        choose_num_buckets(by_prefix, 2**30, None, "")
        == choose_num_buckets(by_prefix, 2**30, None, "", 409_600)
        == 8
    )
    assert choose_num_buckets(by_prefix, 2**30, None, "", 100) == 1


# Settings


def sources_file(path, *sources, **settings):
    path.write_text(json.dumps({"sources": list(sources), **settings}))  # JSON is YAML too
    return path


GOOD = {"name": "a", "input": ["x"]}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("sources", "flags", "said"),
    [
        ([GOOD], ("--input", "y"), "both input (y) and sources (a) are given"),
        (
            [GOOD, GOOD | {"input": ["y"]}],
            (),
            "c.yaml:1: sources[1] ('a'): sources[0] has that name too",
        ),
        ([GOOD | {"name": " "}], (), "has no name"),
        ([GOOD | {"weight": 0}], (), "weight is 0.0, expected more than 0 and at most 100"),
        ([GOOD | {"weight": 100.5}], (), "weight is 100.5"),
        ([GOOD | {"weight": -1}], (), "weight is -1.0"),
        ([GOOD | {"weight": ".nan"}], (), "weight"),
        ([GOOD | {"weight": 0.1234567}], (), "expected at most 6 decimals"),
        ([GOOD | {"input": []}], (), "c.yaml:1: sources[0] ('a'): input is empty"),
        ([{"name": "a"}], (), "input"),
        (
            [GOOD | {"weigth": 2}],
            (),
            "unknown key sources[0].weigth; did you mean sources[0].weight?",
        ),
        ([GOOD | {"format": "docx"}], (), "docx"),
        ([GOOD], ("--language", "zh"), "language: with sources this belongs to each of them"),
        ([GOOD | {"name": str(number)} for number in range(256)], (), "found 256, at most 255"),
    ],
)
def test_sources_that_cannot_be_are_refused(tmp_path, capsys, sources, flags, said):
    config = sources_file(tmp_path / "c.yaml", *sources)
    assert run("build", "--config", config, "--output", tmp_path / "data", *flags) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.processes
def test_a_file_of_two_sources_is_refused(corpus, tmp_path, capsys):
    one, two = GOOD | {"input": [str(corpus)]}, {"name": "b", "input": [f"{corpus}/b.*"]}
    config = sources_file(tmp_path / "c.yaml", one, two)
    assert run("build", "--config", config, "--output", tmp_path / "data") == 2
    assert f"{corpus}/b.jsonl is in the input of the sources a and b" in capsys.readouterr().err


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
    contents = [
        content(a, b),
        content(b, a),
        content(a, Source("c", ["y"])),
        content(a, Source("b", ["y"], 2)),
        content(a, Source("b", ["y"], language="zh")),
        content(Source("a", ["x"], 2)),
    ]
    assert all(one != other for one, other in itertools.combinations(contents, 2))
    assert content(a, b) == content(a, Source("b", ["z"], licence="CC0-1.0"))


# Buckets


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
    numbers = [Counter(prefix[int(row.document_a[0])] for row in rows) for rows in (once, thrice)]
    assert numbers[1][0] == numbers[0][0]
    assert numbers[1][1] / numbers[0][1] == pytest.approx(3, rel=0.2)
    heaviest = documents[1]
    key = int.from_bytes(heaviest.id[:8], "big")
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
        ids = [[row.input_ids.tolist() for row in rows] for rows in (plain, weighted)]
        assert ids[0] == ids[1]


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
