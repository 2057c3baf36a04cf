"""Builds one small corpus in every way that must not change its content, and prints a table of root hashes.

    python -m scripts.soak.root_hashes --output scripts/soak/results/DATE-root-hashes.json

Ways: runners, numbers of workers, both exchanges, part sizes, files renamed, joined, reordered,
doubled and compressed, seeds of Python's hashes. The vocabulary is learned anew in each. Where dask
and distributed are installed, Beam's DaskRunner is one of the ways. Exit code 1 where two differ.
"""

import argparse
import bz2
import gzip
import importlib.util
import json
import lzma
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import zstandard

from scripts.checkout import ROOT, commit

FIXED = ("--passes", "2", "--seq_lens", "64", "--num_buckets", "4", "--vocab_size", "100")
Writer = Callable[[list[str], Path], None]


@dataclass(frozen=True)
class Way:
    """One way to build the same dataset.

    Attributes:
        name: For the table.
        arguments: Flags besides the fixed ones.
        write: Lays the documents, JSON lines, out in a folder.
        environment: Variables besides the process's own.
    """

    name: str
    arguments: tuple[str, ...] = ("--workers", "1")
    write: Writer = field(default_factory=lambda: write_files)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A way's root hash, and its vocabulary's; empty with what was said instead where the build failed."""

    way: str
    root_hash: str
    vocab_sha256: str
    seconds: float
    error: str = ""


def main() -> int:
    """Builds, prints, compares."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--only", nargs="+", help="names of ways, or their beginnings")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    own = parser.parse_args()
    lines = make_documents(own.documents)
    chosen = [way for way in ways() if not own.only or way.name.startswith(tuple(own.only))]
    outcomes = []
    for way in chosen:
        with tempfile.TemporaryDirectory(prefix="beambert-ways-") as folder:
            outcomes.append(build(way, lines, Path(folder)))
        print(
            f"{way.name:42} {outcomes[-1].root_hash[:16] or outcomes[-1].error} {outcomes[-1].seconds:6.1f} s",
            flush=True,
        )
    found = {(outcome.root_hash, outcome.vocab_sha256) for outcome in outcomes}
    result: dict[str, Any] = {
        "soak": "root_hashes",
        "commit": commit(),
        "python": platform.python_version(),
        "beam": version("apache-beam"),
        "cores": os.cpu_count(),
        "documents": own.documents,
        "ways": len(outcomes),
        "failed": [outcome.way for outcome in outcomes if outcome.error],
        "distinct_root_hashes": len({root for root, _ in found}),
        "distinct_vocabularies": len({vocabulary for _, vocabulary in found}),
    }
    print(json.dumps(result))
    if own.output:
        rows = ",\n".join(json.dumps(asdict(outcome)) for outcome in outcomes)
        own.output.parent.mkdir(parents=True, exist_ok=True)
        own.output.write_text(
            f'{{"result": {json.dumps(result, indent=1)},\n"outcomes": [\n{rows}\n]}}\n'
        )
    return 0 if len(found) == 1 else 1


def ways() -> list[Way]:
    """All of them; the first is the plainest."""
    small = ("--part_bytes", "8192")
    found = [
        Way("in memory"),
        *(Way(f"{number} worker processes", ("--workers", str(number))) for number in (2, 4)),
        Way("parts of 8 KiB", ("--workers", "1", *small)),
        Way("parts of 30 KiB, 2 workers", ("--workers", "2", "--part_bytes", "30720")),
        Way("shuffle, in memory", ("--workers", "1", "--exchange", "shuffle", *small)),
        Way("shuffle, 2 workers", ("--workers", "2", "--exchange", "shuffle", *small)),
        Way("one file", write=lambda lines, folder: write_files(lines, folder, num_files=1)),
        Way(
            "9 files of other names",
            write=lambda lines, folder: write_files(lines, folder, 9, "zyx-{}.ndjson"),
        ),
        Way("reversed documents", write=lambda lines, folder: write_files(lines[::-1], folder)),
        Way("every document twice", write=lambda lines, folder: write_files(lines + lines, folder)),
        Way(
            "fields in another order",
            write=lambda lines, folder: write_files([_reorder(each) for each in lines], folder),
        ),
        *(
            Way(f"compressed: {suffix}", write=_compressed(suffix))
            for suffix in ("zst", "gz", "bz2", "xz")
        ),
        Way("compressed: zip", write=write_zip),
        *(
            Way(f"PYTHONHASHSEED={seed}", environment={"PYTHONHASHSEED": seed})
            for seed in ("0", "1", "random")
        ),
    ]
    if all(map(importlib.util.find_spec, ("dask", "distributed"))):
        runner = ("--", "--runner=apache_beam.runners.dask.dask_runner.DaskRunner")
        found += [
            Way(f"DaskRunner, {exchange}", ("--exchange", exchange, *small, *runner))
            for exchange in ("files", "shuffle")
        ]
    return found


def build(way: Way, lines: list[str], folder: Path) -> Outcome:
    """Lays the corpus out and builds it in a process of its own."""
    (folder / "input").mkdir()
    way.write(lines, folder / "input")
    flags, _, runner = " ".join(way.arguments).partition("-- ")
    command = [sys.executable, "-m", "pipeline", "build", "--input", str(folder / "input")]
    command += [
        "--output",
        str(folder / "data"),
        *FIXED,
        *flags.split(),
        *(["--", *runner.split()] if runner else []),
    ]
    began = time.monotonic()
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **way.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = round(time.monotonic() - began, 1)
    if ran.returncode:
        return Outcome(way.name, "", "", seconds, ran.stderr.strip()[-500:])
    manifest = json.loads((folder / "data/manifest.json").read_bytes())
    return Outcome(way.name, manifest["root_hash"], manifest["vocab_sha256"], seconds)


def make_documents(count: int) -> list[str]:
    """JSON lines of made-up documents, no two alike."""
    words = "river mountain engine letter window garden silver winter market captain".split()  # noqa: SIM905
    lines = []
    for number in range(count):
        sentences = (
            " ".join(
                words[(number * 7 + row * 3 + step * (1 + number % 9)) % 10] for step in range(9)
            )
            for row in range(12)
        )
        text = " ".join(
            f"{sentence.capitalize()} {number} {row}." for row, sentence in enumerate(sentences)
        )
        lines.append(json.dumps({"text": text, "number": number}))
    return lines


def write_files(lines: list[str], folder: Path, num_files: int = 4, name: str = "{}.jsonl") -> None:
    """The documents dealt to some files."""
    for number in range(num_files):
        text = "".join(f"{line}\n" for line in lines[number::num_files])
        (folder / name.format(number)).write_text(text)


def write_zip(lines: list[str], folder: Path) -> None:
    """All in one archive of three members."""
    with zipfile.ZipFile(folder / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}.jsonl", "".join(f"{line}\n" for line in lines[number::3]))


def _compressed(suffix: str) -> Writer:
    codecs: dict[str, Callable[[bytes], bytes]] = {
        "zst": lambda data: zstandard.ZstdCompressor().compress(data),
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "xz": lzma.compress,
    }

    def write(lines: list[str], folder: Path) -> None:
        write_files(lines, folder)
        for path in list(folder.iterdir()):
            Path(f"{path}.{suffix}").write_bytes(codecs[suffix](path.read_bytes()))
            path.unlink()

    return write


def _reorder(line: str) -> str:
    return json.dumps(
        dict(reversed(json.loads(line).items())),
        indent=None,
        ensure_ascii=True,
        separators=(",", ":"),
    )


if __name__ == "__main__":
    sys.exit(main())
