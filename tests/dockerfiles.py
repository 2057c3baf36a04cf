"""Dockerfiles, read by instructions as Docker would run them, and run without it in a folder.

A folder stands for the root of an image. COPY lays files of git there, links as links, and RUN is
given to a shell with the image's variables. What needs the base image itself is left out, and told
to whoever asked.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_OF_THE_BASE = ("apt-get ", "rm -rf /var/lib/apt/")


class Step(NamedTuple):
    """An instruction as it is run: with its variables put in, and the folder of the image."""

    name: str
    arguments: str
    folder: PurePosixPath
    values: dict[str, str]

    def copied(self) -> dict[PurePosixPath, str]:
        """Places in the image, each with what of the checkout COPY puts there."""
        *sources, target = self.arguments.split()
        where = self.folder / target
        return {
            where / Path(each).name if target.endswith("/") else where: each for each in sources
        }

    def commands(self) -> list[str]:
        """The commands that RUN joins by &&."""
        return [part.strip() for part in self.arguments.split("&&")]


def steps(text: str) -> Iterator[Step]:
    """Every instruction in order.

    Raises:
        AssertionError: Docker knows the instruction and this does not.
    """
    values: dict[str, str] = {}
    folder = PurePosixPath("/")
    for name, arguments in _instructions(text):
        given = re.sub(r"\$\{(\w+)\}", lambda found, known=values: known[found[1]], arguments)
        assert name in ("ARG", "COPY", "ENV", "FROM", "RUN", "WORKDIR"), (
            f"{name}: an instruction that is not read here"
        )
        if name in ("ARG", "ENV"):
            values |= dict(word.split("=", 1) for word in shlex.split(given))
        if name == "WORKDIR":
            folder = folder / given
        yield Step(name, given, folder, dict(values))


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Pairs of an instruction and its arguments, without comments, continued lines joined."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, arguments = line.strip().partition(" ")
            yield name, " ".join(arguments.split())


class Container:
    """What the steps of a Dockerfile leave in a folder.

    Attributes:
        folder: Where the image starts, below the folder that is its root.
        left_out: Commands that only the base image can run.
        environment: Variables of the image, and PATH; no Python is told where the checkout is.
    """

    def __init__(self, root: Path, base_programs: Path) -> None:
        """A base image with nothing but Python, whose programs lie in a folder."""
        root.mkdir()
        self._root, self.folder, self.left_out = root, root, list[str]()
        ours = ("PYTHON", "VIRTUAL", "BEAMBERT", "OMP")
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(ours)
        }
        self.environment["PATH"] = f"{base_programs}:/usr/local/bin:/usr/bin:/bin"

    def build(self, text: str) -> None:
        """Runs every step.

        Raises:
            AssertionError: A command failed; with what it said.
        """
        for step in steps(text):
            self.folder = self._here(step.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            if step.name == "COPY":
                for place, source in step.copied().items():
                    _copy(source, self._here(place))
            if step.name == "ENV":
                self._set(step)
            if step.name == "RUN":
                for command in step.commands():
                    self._run(command, step)

    def run(self, command: str) -> str:
        """What a command prints, where the image starts.

        Raises:
            AssertionError: It failed; with what it said.
        """
        ran = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    def _run(self, command: str, step: Step) -> None:
        if command.startswith(_OF_THE_BASE):
            self.left_out.append(command)
        else:
            self.run(self._moved(command, step))

    def _set(self, step: Step) -> None:
        for word in shlex.split(step.arguments):
            name, value = word.split("=", 1)
            self.environment[name] = self._moved(value, step).replace(
                "$PATH", self.environment["PATH"]
            )

    def _moved(self, text: str, step: Step) -> str:
        """Text in which the image's virtual environment lies below the folder that is the root."""
        place = step.values.get("VIRTUAL_ENV")
        return text.replace(place, str(self._here(PurePosixPath(place)))) if place else text

    def _here(self, place: PurePosixPath) -> Path:
        return self._root / place.relative_to("/")


def _copy(source: str, target: Path) -> None:
    """A file or folder as a clone has it: without what .dockerignore leaves out."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if (ROOT / source).is_dir():
        ignored = shutil.ignore_patterns(*ignored_names())
        shutil.copytree(ROOT / source, target, symlinks=True, ignore=ignored)
    else:
        shutil.copy(ROOT / source, target)


def ignored_names() -> list[str]:
    """The names that .dockerignore leaves out of every folder."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line.removeprefix("**/") for line in lines if line.startswith("**/")]
