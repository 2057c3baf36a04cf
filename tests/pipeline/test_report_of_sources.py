"""What the report says of sources and of validation by source, from literal manifests."""

from types import SimpleNamespace

import pytest

from pipeline.inspect.mixture import find_unused
from pipeline.inspect.validation import format_validation, measure_validation
from pipeline.tokens.held_out import choose_held_out


def source(name, documents, tokens, held=0, held_tokens=0):
    counters = {"documents": documents, "distinct_tokens": tokens}
    held_out = {"documents": held, "tokens": held_tokens, "last_id": "0" * 32 if held else None}
    return {"name": name, "counters": counters, "validation": held_out}


def said_of(*sources, **settings):
    return format_validation(measure_validation(sources, {"validation_fraction": 0.005} | settings))


TOO_LONG = "documents are too long: at most {}% of a source's tokens are held out, and {} in all;"
EQUALLY = "out if they are equally long"


def test_several_sources_and_one_that_gives_nothing():
    given = source("wiki", 5000, 3_000_000, 15, 15_000), source("web", 6000, 1_000_000, 7, 5000)
    nothing = source("books", 2, 1_000_000), source("news", 9, 10_000)
    why = f"{TOO_LONG.format(10, '1,280,000')} --validation_fraction 0.12 holds 1 {EQUALLY}"
    assert said_of(*given, *nothing) == [
        "validation holds 22 documents of 20,000 tokens, 0.40% of the text: wiki 75.0%, web 25.0%",
        "warning: validation holds nothing of books (it has 2 document(s), at least 3 are needed),"
        f" news (its 9 {why})",
    ]


def test_many_sources_are_counted_not_listed():
    sources = [source(f"s{n}", 100, 50_000, n % 2, 2000 * (n % 2)) for n in range(40)]
    held, warning = said_of(*sources)
    number = "20 documents of 40,000 tokens, 2.00% of the text"
    assert held == f"validation holds {number}, from 20 of 40 sources"
    assert warning.endswith(" and 12 more sources")
    assert warning.count("are too long") == 8


@pytest.mark.parametrize(
    ("own", "settings", "expected"),
    [
        (source("input", 3, 900), {}, "3 documents: no validation split, at least 4 are needed"),
        (
            source("input", 15, 1500),
            {"validation_fraction": 0.11, "validation_tokens": 200},
            "no validation split, which takes two documents: its 15"
            f" {TOO_LONG.format(11, 200)} --validation_fraction 0.14 holds 2 {EQUALLY}",
        ),
        (
            source("input", 8, 80_000_000),
            {},
            "no validation split, which takes two documents: its 8"
            f" {TOO_LONG.format(10, '1,280,000')} --validation_fraction 0.25"
            f" --validation_tokens 20000000 holds 2 {EQUALLY}",
        ),
    ],
)
def test_why_there_is_no_split(own, settings, expected):
    assert said_of(own, **settings) == [f"warning: {expected}"]


def test_a_split_that_is_too_small_or_too_large():
    assert said_of(source("input", 30, 3000, 2, 290)) == [
        "validation holds 2 documents of 290 tokens, 9.67% of the text",
        "warning: losses on fewer than 20,000 tokens hang on single documents: give more text, or"
        " a larger validation_fraction",
        "warning: validation takes 9.7% of the text, as documents are held out whole;"
        " validation_fraction 0 trains on all of it",
    ]


def test_a_split_that_is_mostly_one_source_of_less_text_says_what_evens_it_out():
    """One novel is 82 % of the tokens, and all novels are 32 % of the text."""
    novels = ("books", 37, 1_600_000, 1)
    books = source(*novels, 82_000)
    assert said_of(source("wiki", 9000, 3_400_000, 9, 18_000), books)[1:] == [
        "warning: 82% of validation is of books, which is 32% of the text: its documents are long,"
        " and held out whole; --validation_fraction 0.052 holds out as much of every source"
    ]
    assert len(said_of(source("wiki", 9000, 3_400_000, 9, 40_000), books)) == 2
    even = source("wiki", 9000, 3_400_000, 9, 60_000), source(*novels, 50_000)
    assert len(said_of(*even)) == 1


def test_the_fraction_that_is_said_holds_two_of_eight_equal_documents_out():
    ids = [f"{n:032x}" for n in range(8)]
    own = SimpleNamespace(documents=8, tokens=8000, lowest_ids=ids, lowest_tokens=[1000] * 8)
    found = [choose_held_out([own], fraction, 10**6) for fraction in (0.2, 0.25)]
    assert [each.sources[0].documents for each in found] == [0, 2]


def test_what_was_not_asked_for_is_no_warning_and_a_dataset_of_before_says_nothing():
    own = source("input", 3, 900)
    assert said_of(own, validation_fraction=0) == ["validation holds no documents"]
    del own["validation"]
    assert measure_validation([own], {}) is measure_validation([], {}) is None
    assert format_validation(None) == []


def test_sources_that_give_nothing_to_training_are_named_with_the_reason():
    names = ("name", "documents_read", "documents", "dropped", "share_of_instances", "weight")
    values = [
        ("wiki", 100, 90, {"duplicate": 10}, 0.9, 1),
        ("copies", 20, 0, {"duplicate": 18, "empty": 2}, 0.0, 1),
        ("nothing", 0, 0, {}, 0.0, 1),
        ("rare", 4, 4, {}, 0.0, 0.01),
    ]
    rows = [dict(zip(names, own, strict=True)) for own in values]
    assert find_unused(rows) == [
        "copies: all of its documents were dropped: duplicate 18, empty 2",
        "nothing: its input holds no documents",
        "rare: no pass uses its documents, at weight 0.01",
    ]
    assert find_unused(rows[:1]) == []
