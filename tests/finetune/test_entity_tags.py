"""Tags, entities and their scores, held to seqeval where it is installed."""

import importlib
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.conll.tags import (
    Entity,
    find_entities,
    find_scheme,
    keep_strict,
    label_names,
    write_tags,
)
from trainer.finetune.tokens.entities import score_entities, tag_accuracy

IOB = ["O", *(f"{prefix}-{name}" for prefix in "BI" for name in ("PER", "creative-work"))]
BIOES = ["O", *(f"{prefix}-{name}" for prefix in "BIES" for name in ("PER", "creative-work"))]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("I-PER I-PER I-LOC", [("PER", 0, 2), ("LOC", 2, 3)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("S-PER S-PER B-LOC I-LOC E-LOC", [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 5)]),
        ("B-LOC E-LOC E-LOC", [("LOC", 0, 2), ("LOC", 2, 3)]),
    ],
)
def test_entities_of_any_tags_are_found(tags, expected):
    assert find_entities(tags.split()) == [Entity(*each) for each in expected]


@pytest.mark.parametrize(
    ("scheme", "tags", "expected"),
    [
        ("iob2", "I-PER O B-PER I-PER I-LOC", [("PER", 2, 4)]),
        ("bioes", "B-PER I-PER O S-LOC", [("LOC", 3, 4)]),
        ("bioes", "B-PER E-PER E-PER", [("PER", 0, 2)]),
        ("bioes", "B-PER B-PER E-PER", [("PER", 1, 3)]),
        ("bioes", "S-PER I-PER E-PER", [("PER", 0, 1)]),
    ],
)
def test_strict_entities_are_those_that_the_scheme_writes(scheme, tags, expected):
    found = keep_strict(find_entities(tags.split()), tags.split(), scheme == "bioes")
    assert found == [Entity(*each) for each in expected]


ENTITIES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(["PER", "LOC"])), max_size=6
)


@pytest.mark.parametrize("scheme", ["iob1", "iob2", "bioes"])
@given(parts=ENTITIES)
def test_written_tags_are_of_the_scheme_and_spell_the_same_entities(scheme, parts):
    entities, end = [], 0
    for gap, length, name in parts:
        entities.append(Entity(name, end + gap, end + gap + length))
        end += gap + length
    tags = write_tags(entities, end + 1, scheme)
    assert find_entities(tags) == entities
    if scheme != "iob1":
        assert keep_strict(entities, tags, scheme == "bioes") == entities


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-PER I-PER O B-LOC", "iob2"),
        ("I-PER B-PER O", "iob1"),
        ("B-PER E-PER S-LOC", "bioes"),
        (
            "B-PER I-LOC",
            "1: I-LOC stands where iob2 has B-LOC, and 0: B-PER stands where iob1 has I",
        ),
        ("B-PER O S-PER", "0: B-PER stands where bioes has S-PER"),
        ("O B-PER I-PER O S-X", "2: I-PER stands where bioes has E-PER"),
        ("S-PER E-PER", "1: E-PER stands where bioes has S-PER"),
    ],
)
def test_the_scheme_is_found_or_the_first_tag_that_is_of_none(tags, found):
    sentences = [(tags.split(), str)]
    if " " not in found:
        assert find_scheme(sentences) == found
    else:
        with pytest.raises(ValueError, match=f"of no scheme: {found}"):
            find_scheme(sentences)


def test_labels_are_all_tags_of_the_types():
    assert label_names(["PER", "LOC", "PER"], "iob1") == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert label_names(["X"], "bioes") == ("O", "B-X", "I-X", "E-X", "S-X")


def test_scores_of_one_type_right_and_one_half_found():
    labels = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    predictions = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"]]
    scores = score_entities(labels, predictions)
    assert (scores.micro.precision, scores.micro.recall, scores.micro.num_true) == (2 / 3, 2 / 3, 3)
    assert (scores.by_type["LOC"].precision, scores.by_type["LOC"].recall) == (1.0, 0.5)
    assert scores.by_type["ORG"].f1 == 0.0
    assert scores.macro.f1 == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert tag_accuracy(labels, predictions) == 4 / 6


def test_without_any_entity_everything_is_zero():
    scores = score_entities([["O"]], [["O"]])
    assert scores.micro.f1 == scores.macro.f1 == 0.0
    assert scores.by_type == {}


def _sentences(tags):
    pair = st.integers(1, 12).flatmap(
        lambda size: st.tuples(*[st.lists(st.sampled_from(tags), min_size=size, max_size=size)] * 2)
    )
    return st.lists(pair, min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("mode", "tags"), [(None, IOB), (None, BIOES), ("IOB2", IOB), ("IOBES", BIOES)]
)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_scores_are_those_of_seqeval(mode, tags, data):
    metrics = pytest.importorskip("seqeval.metrics")
    peer = importlib.import_module(
        "seqeval.metrics.v1" if mode else "seqeval.metrics.sequence_labeling"
    )
    scheme = {"scheme": getattr(importlib.import_module("seqeval.scheme"), mode)} if mode else {}
    labels, predictions = (list(each) for each in zip(*data.draw(_sentences(tags)), strict=True))
    labels[0] = [*labels[0], "S-PER" if tags is BIOES else "B-PER"]
    predictions[0] = [*predictions[0], "O"]
    ours = score_entities(labels, predictions, is_strict=bool(mode))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = {
            each: peer.precision_recall_fscore_support(labels, predictions, average=each, **scheme)
            for each in (None, "micro", "macro")
        }
    found = [
        (score.precision, score.recall, score.f1, score.num_true) for score in ours.by_type.values()
    ]
    assert found == [pytest.approx(row) for row in zip(*theirs[None], strict=True)]
    for ours_of, average in ((ours.micro, "micro"), (ours.macro, "macro")):
        assert (ours_of.precision, ours_of.recall, ours_of.f1) == pytest.approx(theirs[average][:3])
    assert tag_accuracy(labels, predictions) == pytest.approx(
        metrics.accuracy_score(labels, predictions)
    )
