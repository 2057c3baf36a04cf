"""docs/notebooks: every cell of the four runs as it stands there, one notebook behind the other in one folder.

Cells run in this process, as a kernel would run them; lines that begin with "!" are commands,
which a backslash continues.
`beambert` is this checkout's, and pictures are drawn where nobody sees them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs/notebooks"
NAMES = ["1-build", "2-train", "3-look", "4-fine-tune"]
BEAMBERT = f"{sys.executable} -c 'import sys; from trainer.beambert import main; sys.exit(main())' "


def read_cells(name):
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    assert notebook["nbformat"] == 4
    return notebook["cells"]


def run_cell(source, names):
    if not source.startswith("!"):
        exec(compile(source, "cell", "exec"), names)
        return
    command = source[1:].replace("\\\n", " ").replace("beambert ", BEAMBERT, 1)
    assert "\n" not in command
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parents[1]), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, check=False
    )
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
