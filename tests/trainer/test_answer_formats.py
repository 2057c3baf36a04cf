"""Claims of a certificate, and what made a gradient large, as a table and as a page."""

from trainer.ask.page import render_answer
from trainer.ask.table import format_records

CLAIMS = [
    {"kind": "claim", "claim": "a first claim", "verdict": "held", "why": "it was seen"},
    {"kind": "claim", "claim": "no <b>", "verdict": "cannot be checked", "why": "it is gone"},
]
BLAME = {
    "kind": "blame",
    "step": 1200,
    "is_undone": False,
    "instances": 4,
    "norm": 9.25,
    "passes": 9,
    "single_passes": 4,
    "begin": "step-00001100",
    "steps_made": 99,
    "norm_with_dropout": 9.5,
    "recorded_norm": "nan",
    "median_before": 1.0,
    "steps_before": 100,
}
HALF = {"kind": "half", "step": 1200, "first_slot": 0, "last_slot": 1, "norm_without": 1.125}
SINGLE = {"kind": "half", "step": 1200, "first_slot": 2, "last_slot": 2, "norm_without": "inf"}
CULPRIT = {
    "kind": "culprit",
    "step": 1200,
    "slot": 1,
    "share": 1.0625,
    "own_norm": 9.0,
    "norm_without_first": None,
    "dataset": "a",
    "epoch": 0,
    "shard": "s.tar",
    "row": 7,
    "document_a": "0" * 15 + "1",
    "document_b": "0" * 15 + "2",
    "is_random_next": True,
    "tokens": 9,
    "masked": 2,
    "a": ["one two ", {"shown": "[MASK]", "original": "three"}],
    "b": ["four"],
}


def test_claims_are_a_table_with_the_verdict_first():
    assert [*format_records(CLAIMS)] == [
        "held               a first claim",
        "                   it was seen",
        "cannot be checked  no <b>",
        "                   it is gone",
    ]
    page = render_answer("RUN", "Claims", CLAIMS)
    assert "no &lt;b&gt;" in page
    assert page.count("a first claim") == 1


def test_norms_halves_and_instances_are_tables():
    lines = [*format_records([BLAME, HALF, SINGLE, CULPRIT])]
    assert lines == [
        "step 1,200, 4 instances: the norm of its gradient",
        "  before         1, the median of the 100 steps before",
        "  recorded       nan",
        "  with dropout   9.5, made again as the run made it",
        "  without        9.25, made again without dropout, as all below",
        "  passes         99 steps were made again from step-00001100, then the step 9 times, and"
        " its instances alone 4 times",
        "",
        "  left out          norm without them",
        "  slots 0-1         1.125",
        "  slot 2            inf",
        "",
        "   slot    share  norm without it and those above  A                 B                "
        " text of A",
        "      1   106.2%                                -  0000000000000001  0000000000000002  one"
        " two [[MASK]>three]",
    ]
    page = render_answer("RUN", "Step 1200", [BLAME, HALF, SINGLE, CULPRIT])
    assert page.count("<article") == 1
    for text in ("slots 0-1", "share 106.2%", "1, the median of the 100 steps before", "1.125"):
        assert text in page
