"""docs/notebooks: every cell of the four runs as it stands there, one notebook behind the other in one folder.

Cells run in this process, as a kernel would run them; lines that begin with "!" are commands,
which a backslash continues.
`beambert` is this checkout's, and pictures are drawn where nobody sees them.
"""

import json
import shlex
from pathlib import Path

import pytest

from tests.loaded_python import run_python

FOLDER = Path(__file__).parents[2] / "docs/notebooks"
NAMES = ["1-build", "2-train", "3-look", "4-fine-tune"]
BEAMBERT = "import sys; from trainer.beambert import main; sys.exit(main())"


def read_cells(name):
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    assert notebook["nbformat"] == 4
    return notebook["cells"]


def run_cell(source, names):
    if not source.startswith("!"):
        exec(compile(source, "cell", "exec"), names)
        return
    command = source[1:].replace("\\\n", " ")
    assert "\n" not in command
    program, *words = shlex.split(command)
    if program == "cat":
        assert all(Path(word).is_file() for word in words)
        return
    assert program == "beambert"
    result = run_python(["-c", BEAMBERT, *words], cwd=Path.cwd())
    assert result.returncode == 0, f"{source}\n{result.stdout}{result.stderr}"


@pytest.mark.engines
def test_every_notebook_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        names = {}
        for cell in read_cells(name):
            if cell["cell_type"] == "code":
                run_cell("".join(cell["source"]), names)
    for path in ("data/manifest.json", "run/report.html", "hf/README.md", "task/results.json"):
        assert Path(path).is_file()


def test_notebooks_are_kept_without_what_they_print():
    assert sorted(path.stem for path in FOLDER.iterdir()) == NAMES
    for name in NAMES:
        for cell in read_cells(name):
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None
