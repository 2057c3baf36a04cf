"""Text of users' files in messages stays short."""

import pytest

from pipeline.storage.quoting import join_names, quote


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
