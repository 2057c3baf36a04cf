"""The page of --help, on every version of Python that runs the builder."""

import inspect
from dataclasses import make_dataclass

import pytest

from pipeline.command_line.help import describe_class, field_groups, field_help

DOCSTRING = """Settings of `toast`.

    They are few.

    Bread:
        slices: Slices of bread to toast;
            the machine takes four.

    Heat:
        seconds: Seconds of heat.
    """


@pytest.mark.parametrize(
    "docstring",
    [DOCSTRING, inspect.cleandoc(DOCSTRING)],
    ids=["as written", "as Python 3.13 compiles it"],
)
def test_texts_of_fields_are_found_whatever_the_indentation(docstring):
    settings_class = make_dataclass("Settings", [("slices", int, 2), ("seconds", int, 90)])
    settings_class.__doc__ = docstring
    assert describe_class(settings_class) == ["Settings of `toast`.", "They are few."]
    assert [*field_groups(settings_class)] == [("Bread", ["slices"]), ("Heat", ["seconds"])]
    assert field_help(settings_class, "slices").startswith(
        "Slices of bread to toast; the machine takes four."
    )
    assert field_help(settings_class, "seconds").startswith("Seconds of heat.")
