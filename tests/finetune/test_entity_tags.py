"""Tags, entities and their scores, held to seqeval where it is installed."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.conll.tags import Entity, find_entities, find_scheme, label_names, write_tags
from trainer.finetune.tokens.task import score_entities, tag_accuracy

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


NAMES = st.sampled_from(["PER", "LOC"])
ENTITIES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), NAMES), max_size=6)


@pytest.mark.parametrize("scheme", ["iob1", "iob2", "bioes"])
@given(parts=ENTITIES)
def test_written_tags_are_of_the_scheme_and_spell_the_same_entities(scheme, parts):
    entities, end = [], 0
    for gap, length, name in parts:
        entities.append(Entity(name, end + gap, end + gap + length))
        end += gap + length
    tags = write_tags(entities, end + 1, scheme)
    assert find_entities(tags) == entities


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-PER I-PER O B-LOC", "iob2"),
        ("I-PER B-PER O", "iob1"),
        ("B-PER E-PER S-LOC", "bioes"),
        ("B-PER I-LOC", "1: I-LOC stands where iob2 has B-LOC, and 0: B-PER stands where iob1"),
        ("B-PER O S-PER", "0: B-PER stands where bioes has S-PER"),
        ("O B-PER I-PER O S-X", "2: I-PER stands where bioes has E-PER"),
        ("S-PER E-PER", "1: E-PER stands where bioes has S-PER"),
    ],
)
def test_the_scheme_is_found_or_the_first_tag_that_is_of_none(tags, found):
    if " " not in found:
        assert find_scheme([(tags.split(), str)]) == found
        return
    with pytest.raises(ValueError, match=f"of no scheme: {found}"):
        find_scheme([(tags.split(), str)])


def test_labels_are_all_tags_of_the_types():
    assert label_names(["PER", "LOC", "PER"], "iob1") == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert label_names(["X"], "bioes") == ("O", "B-X", "I-X", "E-X", "S-X")


def test_without_any_entity_everything_is_zero():
    assert score_entities([["O"]], [["O"]]) == ((0.0, 0.0, 0.0, 0), {})


def _sentences(tags):
    drawn = lambda size: st.lists(st.sampled_from(tags), min_size=size, max_size=size)  # noqa: E731
    pair = st.integers(1, 12).flatmap(lambda size: st.tuples(*[drawn(size)] * 2))
    return st.lists(pair, min_size=1, max_size=6)


@pytest.mark.parametrize("tags", [IOB, BIOES])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_scores_are_those_of_seqeval(tags, data):
    seqeval = pytest.importorskip("seqeval.metrics.sequence_labeling")
    labels, predictions = (list(each) for each in zip(*data.draw(_sentences(tags)), strict=True))
    labels[0] = [*labels[0], "S-PER" if tags is BIOES else "B-PER"]
    predictions[0] = [*predictions[0], "O"]
    every, by_type = score_entities(labels, predictions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = seqeval.precision_recall_fscore_support
        theirs, micro = (scores(labels, predictions, average=each) for each in (None, "micro"))
    expected = [pytest.approx(row) for row in zip(*theirs, strict=True)]
    assert [tuple(each) for each in by_type.values()] == expected
    assert every[:3] == pytest.approx(micro[:3])
    found = seqeval.accuracy_score(labels, predictions)
    assert tag_accuracy(labels, predictions) == pytest.approx(found)
