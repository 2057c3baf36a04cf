"""Text of users' files in messages stays short."""

import pytest

from pipeline.storage.quoting import join_names, quote
from pipeline.storage.terminal import say


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\tb", "'a\\tb'"),
        ("x" * 60, f"'{'x' * 60}'"),
        ("x" * 1_000, f"'{'x' * 60}'... (1,000 characters)"),
        (3, "3"),
        (None, "None"),
        ([1] * 99, "[" + "1, " * 19 + "1,..."),
    ],
)
def test_a_value_is_cut(value, shown):
    assert quote(value) == shown


def test_a_list_of_names_is_cut():
    assert join_names(["a", 2]) == "a, 2"
    assert join_names(["a" * 61]) == "a" * 60 + "..."
    assert join_names(range(1_022), most=2) == "0, 1, and 1,020 more"


@pytest.mark.parametrize("is_aside", [False, True])
def test_lines_for_people_have_no_secret_and_nothing_that_a_terminal_obeys(capsys, is_aside):
    say(
        "\x1b[2Ja.jsonl: read\nhttps://h/v.txt?X-Amz-Signature=S3cr3t: \u202elog", is_aside=is_aside
    )
    shown = "\\x1b[2Ja.jsonl: read\nhttps://h/v.txt?X-Amz-Signature=(hidden): \\u202elog\n"
    assert capsys.readouterr() == (("", shown) if is_aside else (shown, ""))
