"""Whether earlier work may be continued, and what run.json says of a launch."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainer.runs.continuing import Continuable, complete_sections
from trainer.runs.launch import launch_facts

ROOT = Path(__file__).parents[2]
CAKE = Continuable(kind="a cake", marker="cake.json", free=("oven",))


def test_what_differs_is_named_with_both_values():
    old = {"oven": "left", "grams": {"flour": 200, "salt": 1}, "eggs": [2]}
    old["steps"] = [{"minutes": 3}, {"minutes": 4}]
    new = {"oven": "right", "grams": {"flour": 250}, "eggs": [2, 2]}
    new["steps"] = [{"minutes": 3}, {"minutes": 5}]
    CAKE.check_settings("here", old, old | {"oven": "right"})
    with pytest.raises(ValueError) as error:  # noqa: PT011
        CAKE.check_settings("here", old, new, ["the cook was A and is now B"])
    assert str(error.value) == (
        "here holds a cake with other settings: eggs was [2] and is now [2, 2]; grams.flour was"
        " 200 and is now 250; grams.salt was 1 and is now None; steps.1.minutes was 4 and is now"
        " 5; the cook was A and is now B. Give the settings it was started with to continue it, or"
        " another --output"
    )


@dataclass(frozen=True)
class Topping:
    name: str
    grams: int = 5


@dataclass(frozen=True)
class CakeSettings:
    minutes: int
    toppings: list[Topping]
    oven: Topping = Topping("hot")
    candles: int = 3


def test_sections_of_work_of_an_earlier_version_have_the_defaults_of_newer_settings():
    now = CakeSettings(30, [Topping("nuts", 7)], Topping("cold", 1), 9)
    old = {"minutes": 20, "toppings": [{"name": "nuts"}], "oven": {"name": "hot"}}
    assert complete_sections(old, now) == {
        "minutes": 20,
        "toppings": [{"name": "nuts", "grams": 5}],
        "oven": {"name": "hot", "grams": 5},
    }
    assert complete_sections({"toppings": [], "else": 1}, now) == {"toppings": [], "else": 1}


def test_a_folder_of_something_else_is_refused(tmp_path):
    CAKE.refuse_foreign(tmp_path / "missing")
    CAKE.refuse_foreign(tmp_path)
    (tmp_path / ".lock").touch()
    CAKE.refuse_foreign(tmp_path)
    (tmp_path / "notes.txt").touch()
    said = r"^there exists and is not a cake, it has no cake\.json; give another"
    for path in (tmp_path / "notes.txt", tmp_path):
        with pytest.raises(FileExistsError, match=said):
            CAKE.refuse_foreign(path, "there")
    (tmp_path / "cake.json").touch()
    CAKE.refuse_foreign(tmp_path)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a source tree outside git has no commit")
@pytest.mark.processes
def test_a_launch_says_the_commit_of_its_source():
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True)
    assert launch_facts(1)["git_commit"].removesuffix("+changes") == head.strip()
