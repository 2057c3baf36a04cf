"""Mutants of a module: which changes are made, and that each is one change."""

import ast
import difflib

import pytest

from scripts.checkout import ROOT
from scripts.soak.mutant_targets import EQUIVALENT, MEANT, TARGETS
from scripts.soak.mutations import find_mutants, mutate, sample

SOURCE = '''
"""Docstring with 1."""

LIMIT: int = 3


class Box:
    def fits(self, size: int = 7) -> bool:
        """More than 2."""
        if size < 0 and not self.closed:
            raise ValueError(f"{size + 1} is below {0}")
        assert size != 5, "five"
        self.note(size)
        return size // 2 in self.sizes
'''


def changed_lines(source, mutant):
    before, after = ast.unparse(ast.parse(source)).splitlines(), mutate(source, mutant).splitlines()
    return [line for line in difflib.ndiff(before, after) if line[0] in "+-"]


def test_every_change_of_a_module():
    assert [(each.function, each.change) for each in find_mutants("box.py", SOURCE)] == [
        ("", "3 to 4: 3"),
        ("Box.fits", "7 to 8: 7"),
        ("Box.fits", "size < 0 and (not self.closed) to not (size < 0 and (not self.closed)): "
         "if size < 0 and (not self.closed):"),
        ("Box.fits", "And to Or: size < 0 and (not self.closed)"),
        ("Box.fits", "Lt to LtE: size < 0"),
        ("Box.fits", "0 to 1: 0"),
        ("Box.fits", "left out: raise ValueError(f'{size + 1} is below {0}')"),
        ("Box.fits", "left out: self.note(size)"),
        ("Box.fits", "In to NotIn: size // 2 in self.sizes"),
        ("Box.fits", "FloorDiv to Mult: size // 2"),
        ("Box.fits", "2 to 3: 2"),
    ]  # fmt: skip


def test_each_mutant_differs_in_one_line():
    for mutant in find_mutants("box.py", SOURCE):
        assert len(changed_lines(SOURCE, mutant)) == 2, mutant


def test_a_left_out_check():
    [mutant] = [each for each in find_mutants("box.py", SOURCE) if "raise" in each.change]
    assert changed_lines(SOURCE, mutant)[-1] == "+             pass"


def test_equal_changes_are_counted_and_lines_before_them_change_no_sample():
    source = "def f(a):\n    return a + 1, a + 1\n"
    names = [each.name for each in find_mutants("f.py", source)]
    assert names[0] == "f.py f Add to Sub: a + 1 #0"
    assert names[2] == "f.py f Add to Sub: a + 1 #1"
    drawn = sample(find_mutants("f.py", source), 2, seed=3)
    later = sample(find_mutants("f.py", "import os\n\n\n" + source), 2, seed=3)
    assert [each.name for each in drawn] == [each.name for each in later]
    assert [each.line + 3 for each in drawn] == [each.line for each in later]


def test_targets_and_their_tests_are_there():
    for path, tests in TARGETS.items():
        assert (ROOT / path).is_file(), path
        for test in tests:
            assert (ROOT / "tests" / test).is_file(), test


@pytest.mark.parametrize("meant", MEANT, ids=lambda meant: meant.why)
def test_a_meant_change_still_has_its_place(meant):
    assert (ROOT / meant.path).read_text().count(meant.old) == 1
    assert meant.path in TARGETS


def test_mutants_said_to_be_equivalent_are_still_there():
    names = {each.name for path in TARGETS if path.endswith(".py")
             for each in find_mutants(path, (ROOT / path).read_text())}  # fmt: skip
    assert EQUIVALENT.keys() <= names
