"""Installs the engines of tests and soaks: each once, by name, in a folder outside the tree.

    scripts/engines              # all of them
    scripts/engines flink prism  # some

A folder's name holds what was asked for, so another version has another folder. `.installed` is
written last: a folder without it was left half made, and is made anew.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scripts.checkout import ROOT, make_parser

JOB_SERVER_BEAM = os.environ.get("BEAMBERT_JOB_SERVER_BEAM") or "2.62.0"
"""Beam's version of the job servers; the variable names another one.

2.62.0 is the newest version of which Maven has all libraries where the tests run. docs/runners.md
has its answer for 2.77.0.
"""
FLINK = "1.19.3"
SPARK = "3.5.9"
PRISM = "v2.77.0"
DASK = "2026.8.0"
_ATTEMPTS = 3
_PAUSE_SECONDS = 5.0
_KEPT_DAYS = 7


@dataclass(frozen=True)
class Engine:
    """Something to install.

    Attributes:
        name: Its name.
        wanted: Everything that decides what is installed, such as versions. If it changes, the
            engine is installed anew.
        needs: A program that must be on PATH.
        make: Installs the engine into a folder.
    """

    name: str
    wanted: str
    needs: str
    make: Callable[[Path], None]

    @property
    def folder(self) -> Path:
        """The folder that the engine is or will be installed in."""
        return home() / f"{self.name}-{_digest(self.wanted)}"

    @property
    def is_installed(self) -> bool:
        """Whether the engine was installed to the end."""
        return (self.folder / ".installed").exists()


def home() -> Path:
    """Returns the folder of all engines: in the user's home, because its programs are run."""
    own = Path.home() / ".cache" / "beambert-engines"
    return Path(os.environ.get("BEAMBERT_ENGINES") or own).absolute()


def engines() -> dict[str, Engine]:
    """Returns all engines by name. Those that take longest to install are first."""
    python = ".".join(map(str, sys.version_info[:2]))
    pinned = f"python {python}\n" + (ROOT / "constraints.txt").read_text()
    packages = worker_packages()
    dask = [*packages, f"dask=={DASK}", f"distributed=={DASK}"]
    pom = _POM.read_text()
    found = (
        Engine("prism", PRISM, "go", _make_prism),
        Engine("flink-job-server", f"{JOB_SERVER_BEAM} {pom}", "mvn", _make_flink_job_server),
        Engine("spark-job-server", f"{JOB_SERVER_BEAM} {pom}", "mvn", _make_spark_job_server),
        Engine("flink", f"{FLINK} {python}", "java", _make_flink),
        Engine("spark", f"{SPARK} {python}", "java", _make_spark),
        Engine(
            "workers",
            f"{packages} {pinned}",
            "python3",
            lambda folder: _install_packages(folder, packages),
        ),
        Engine(
            "dask", f"{dask} {pinned}", "python3", lambda folder: _install_packages(folder, dask)
        ),
    )
    return {each.name: each for each in found}


def install(engine: Engine) -> str:
    """Installs an engine if it is not installed yet, and returns a line about what was done.

    Raises:
        RuntimeError: A program that the installation needs is not on PATH.
    """
    home().mkdir(parents=True, exist_ok=True)
    with (home() / f".{engine.folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be making it
        if engine.is_installed:
            engine.folder.touch()
            return f"{engine.name}: found in {engine.folder}"
        if not shutil.which(engine.needs):
            raise RuntimeError(
                f"{engine.name}: `{engine.needs}` is not on PATH; install it and run again"
            )
        began = time.monotonic()
        shutil.rmtree(engine.folder, ignore_errors=True)
        engine.folder.mkdir()
        _remove_old(home(), f"{engine.name}-????????????")
        engine.make(engine.folder)
        (engine.folder / ".installed").write_text(engine.wanted)
        return f"{engine.name}: made in {engine.folder} ({time.monotonic() - began:.0f} s)"


def find_code() -> Path:
    """Returns a folder with the wheel of this checkout, for the PYTHONPATH of workers.

    The wheel is built if there is none of these sources yet.
    """
    sources = _source_files()
    digest = _digest("".join(f"{each.relative_to(ROOT)}\n{each.read_text()}" for each in sources))
    folder = home() / "code" / digest
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _remove_old(folder.parent, "*")
            _make_code(sources, folder)
    folder.touch()
    return folder


def worker_packages() -> list[str]:
    """Returns the requirements of our wheel with [pipeline], and of building the wheel."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["pipeline"]]
    return [*needed, *settings["build-system"]["requires"]]


def _make_code(sources: Sequence[Path], folder: Path) -> None:
    """Unpacks a wheel of the sources, of no other file of the tree, into a folder."""
    python = engines()["workers"].folder / "bin/python"
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        copy, wheels, code = (Path(temporary, name) for name in ("copy", "wheels", "code"))
        for each in sources:
            target = copy / each.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(each, target)
        pip = (python, "-m", "pip")
        _run([*pip, *["wheel", "-q", "--no-deps", "--no-build-isolation", "-w"], wheels, copy])
        _run([*pip, *["install", "-q", "--no-deps", "--target"], code, *wheels.iterdir()])
        code.rename(folder)


def _source_files() -> list[Path]:
    found = [ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    for room in ("pipeline", "tokenizer", "trainer"):
        found += [
            each
            for each in (ROOT / room).rglob("*")
            if each.suffix in (".py", ".c", ".h", ".html", ".css", ".typed")
        ]
    return sorted(found)


def _remove_old(folder: Path, pattern: str) -> None:
    """Removes what was made for another state of the sources and has not been used for days."""
    oldest = time.time() - _KEPT_DAYS * 86_400
    for each in folder.glob(pattern):
        if each.is_dir() and each.stat().st_mtime < oldest:
            shutil.rmtree(each, ignore_errors=True)


def _make_prism(folder: Path) -> None:
    environment = {"GOBIN": str(folder), "GOFLAGS": "-buildvcs=false -p=2"}
    _run(["go", "install", f"github.com/apache/beam/sdks/v2/go/cmd/prism@{PRISM}"], environment)


def _make_flink(folder: Path) -> None:
    """Installs Flink's own programs and jars.

    Flink's Python packages are left out, because they need an old Beam.
    """
    _make_environment(folder)
    _pip_install(
        folder, ["--no-deps", f"apache-flink=={FLINK}", f"apache-flink-libraries=={FLINK}"]
    )
    for program in (flink_home(folder) / "bin").iterdir():
        program.chmod(0o755)


def _make_spark(folder: Path) -> None:
    _make_environment(folder)
    _pip_install(folder, [f"pyspark=={SPARK}"])


def flink_home(folder: Path) -> Path:
    """Returns the folder of Flink inside an environment."""
    return next(folder.glob("lib/python*/site-packages/pyflink"))


def spark_home(folder: Path) -> Path:
    """Returns the folder of Spark inside an environment."""
    return next(folder.glob("lib/python*/site-packages/pyspark"))


def _make_flink_job_server(folder: Path) -> None:
    _make_job_server(
        folder, "beam-runners-flink-1.19", "org.apache.beam.runners.flink.FlinkJobServerDriver"
    )


def _make_spark_job_server(folder: Path) -> None:
    _make_job_server(folder, "beam-runners-spark-3", SPARK_DRIVER)


_POM = Path(__file__).with_name("job-server.xml")
SPARK_DRIVER = "org.apache.beam.runners.spark.SparkJobServerDriver"


def _make_job_server(folder: Path, runner: str, main_class: str) -> None:
    values = {"runner": runner, "beam": JOB_SERVER_BEAM, "main": main_class, "folder": str(folder)}
    pom = folder / "pom.xml"
    pom.write_text(_POM.read_text())
    flags = (f"-D{name}={value}" for name, value in values.items())
    _run(["mvn", "-q", "-B", "-f", pom, *flags, "package"])


def _install_packages(folder: Path, packages: Sequence[str]) -> None:
    _make_environment(folder)
    _pip_install(folder, ["--constraint", str(ROOT / "constraints.txt"), *packages])


def _make_environment(folder: Path) -> None:
    _run([sys.executable, "-m", "venv", folder])


def _pip_install(folder: Path, words: Sequence[str]) -> None:
    fixed = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "10")
    _run([folder / "bin/python", *fixed, *words])


def _run(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> None:
    """Runs a program, and again where it fails, as networks do; at last a RuntimeError."""
    words = [str(word) for word in command]
    # A shell that works in a checkout may name its packages: an environment of its own must not
    # find them.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        ran = subprocess.run(
            words,
            env=kept | (environment or {}),
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
        )
        if ran.returncode == 0:
            return
    said = (ran.stdout + ran.stderr).strip()[-2000:]
    raise RuntimeError(
        f"`{' '.join(words)}` failed {_ATTEMPTS} times, with exit code {ran.returncode}:\n{said}"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def main() -> int:
    """Installs those that are named, two at a time; exit code 1 where one could not be."""
    known = engines()
    parser = make_parser(__doc__, prog="scripts/engines")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(known)}; all where none is named")
    own = parser.parse_args()
    if unknown := sorted(set(own.names) - known.keys()):
        parser.error(f"no engine is called {', '.join(unknown)}; there are {', '.join(known)}")
    failed = False
    with ThreadPoolExecutor(2) as pool:
        for started in [pool.submit(install, known[name]) for name in own.names or known]:
            try:
                print(started.result(), flush=True)
            except RuntimeError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
