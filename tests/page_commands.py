"""Commands of a page, run as they stand there; `python` and ranks are forks of one with torch."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.loaded_python import ROOT, run_python
from tests.trainer.two_ranks import run_nodes

_COMMAND = re.compile(r"python - <<'EOF'\n(.*?\n)EOF\n|(?:[^\n]*\\\n)*[^\n]+\n", re.DOTALL)


def run_block(block: str, cwd: Path, **variables: str) -> str:
    """What all commands of a block print; each must end well."""
    return "".join(_run(found[0], found[1], cwd, variables) for found in _COMMAND.finditer(block))


def _run(command: str, code: str | None, cwd: Path, variables: dict[str, str]) -> str:
    words = (
        ["python", "-c", code] if code else shlex.split(command.replace("\\\n", " "), comments=True)
    )
    if words[:1] == ["python"] and words[1:4] != ["-m", "pipeline", "build"]:
        ran = run_python(words[1:], cwd, **variables)
    elif words[:2] == ["deepspeed", "--num_gpus"]:
        ranks = run_nodes([(["-m", *words[words.index("--module") + 1 :]], int(words[2]))], cwd=cwd)
        ran = max(ranks, key=lambda rank: rank.returncode)
    else:  # a build starts workers by its own command line
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), **variables}
        shell = ["bash", "-euo", "pipefail", "-c", command]
        ran = subprocess.run(
            shell, cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout
