"""Feeds damaged bytes to all that reads them: an error with the place, or a result, no more.

    pip install atheris
    python -m scripts.soak.fuzz --seconds 600 --output scripts/soak/results/DATE-fuzz.json

Targets are the readers of every format, the block decoder, the manifest and the tables. Each begins
with sound files and mutates them towards new lines of code (libFuzzer through atheris; the coverage
is that of this project's modules and of the standard library's parsers). What a target may do is
raise a ValueError that begins with the place; a crash, any other exception, more than 20 seconds or
2 GB are findings, and the input is kept. Every target gets an equal share of the time, in a process
of its own.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.checkout import ROOT, describe_soak, make_parser, write_results

SECONDS_PER_INPUT = 20
MEGABYTES = 2048
MAX_BYTES = 1 << 16
PLACE = "fuzzed"


def main() -> int:
    """Fuzzes the targets one after the other, or, as a child process, one of them."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="of all targets together")
    parser.add_argument("--targets", nargs="+", help="some of them; all by default")
    parser.add_argument(
        "--findings", type=Path, default=Path("fuzz-findings"), help="folder for inputs that break"
    )
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    parser.add_argument("--child", nargs=2, metavar=("TARGET", "FOLDER"), help=argparse.SUPPRESS)
    own, rest = parser.parse_known_args()
    if own.child:
        fuzz_here(own.child[0], own.child[1], rest)
        return 0
    names = own.targets or list(seed_inputs())
    rows = [fuzz_target(name, own.seconds // len(names), own.findings) for name in names]
    result: dict[str, Any] = {
        **describe_soak("fuzz"),
        "seconds": sum(row["seconds"] for row in rows),
        "executions": sum(row["executions"] for row in rows),
        "findings": sum(bool(row["finding"]) for row in rows),
    }
    print(json.dumps(result))
    write_results(own.output, result, "targets", rows)
    return 1 if result["findings"] else 0


def fuzz_target(name: str, seconds: int, findings: Path) -> dict[str, Any]:
    """Runs a target in a process of its own for some seconds; its row of the results."""
    findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="beambert-fuzz-") as folder:
        for number, data in enumerate(seed_inputs()[name]):
            Path(folder, f"seed-{number}").write_bytes(data)
        limits = [
            f"-timeout={SECONDS_PER_INPUT}",
            f"-rss_limit_mb={MEGABYTES}",
            f"-max_len={MAX_BYTES}",
        ]
        command = [sys.executable, "-m", "scripts.soak.fuzz", "--child", name, folder]
        command += [f"-max_total_time={seconds}", *limits]
        command += [
            f"-artifact_prefix={findings}/{name}-",
            "-print_final_stats=1",
            "-seed=1",
            folder,
        ]
        began = time.monotonic()
        run = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False
        )
        inputs = len(list(Path(folder).iterdir()))
    row = {
        "target": name,
        "seconds": round(time.monotonic() - began, 1),
        "executions": _number(r"(?:#|number_of_executed_units:\s+)(\d+)", run.stderr),
        "inputs_kept": inputs,
        "coverage": _number(r"cov: (\d+)", run.stderr),
        "peak_mb": _number(r"(?:rss: |peak_rss_mb:\s+)(\d+)", run.stderr),
        "finding": "" if run.returncode == 0 else _describe(run.stdout + run.stderr),
    }
    print(json.dumps(row), flush=True)
    return row


def fuzz_here(name: str, folder: str, arguments: list[str]) -> None:
    """Fuzzes a target in this process, and never returns: libFuzzer ends the process."""
    import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["pipeline", "json", "zipfile", "email", "http"]):
        target = make_target(name, folder)

    def once(data: bytes) -> None:
        expect_refusal(target, data)

    atheris.Setup([sys.argv[0], *arguments], once)
    atheris.Fuzz()


def expect_refusal(target: Callable[[bytes], object], data: bytes) -> None:
    """Calls a target; it may return, or raise a ValueError that names the place."""
    try:
        target(data)
    except ValueError as error:
        if PLACE not in str(error):
            raise AssertionError(f"no place in: {error!r}") from error


def make_target(name: str, folder: str) -> Callable[[bytes], object]:
    """Returns the function under test.

    Readers get the bytes as a file, codecs get the bytes themselves.
    """
    from pipeline.shards import block, block_tables, manifest

    rows = manifest.parse_shards_table(_shards(), PLACE)

    def read_tables(data: bytes) -> None:
        """Reads the blocks of every shard from a block table."""
        opened = block_tables.open_block_tables(data, rows, PLACE)
        for index in range(len(rows)):
            opened.table(index)

    codecs: dict[str, Callable[[bytes], object]] = {
        "block": lambda data: block.block_digest(block.decode_block(data, PLACE)),
        "manifest": lambda data: manifest.parse_manifest(_with_own_hash(data), PLACE),
        "shards.parquet": lambda data: manifest.parse_shards_table(data, PLACE),
        "blocks.parquet": read_tables,
    }
    return codecs.get(name) or reader_of(name, Path(folder))


def _with_own_hash(data: bytes) -> bytes:
    """Puts the right hash into a manifest, so that its other fields are checked too.

    Bytes that are no JSON object are returned unchanged.
    """
    from pipeline.shards.records import MANIFEST_HASH, canonical_hash

    try:
        fields = json.loads(data)
        fields.pop(MANIFEST_HASH, None)
        return json.dumps({**fields, MANIFEST_HASH: canonical_hash(fields)}).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data


def reader_of(name: str, folder: Path) -> Callable[[bytes], object]:
    """Reads all documents of a file, whole and its second half where it may be cut."""
    from pipeline.documents.files import FileRange
    from pipeline.documents.formats import may_be_cut
    from pipeline.documents.parts import Part
    from pipeline.documents.read import read_part

    text_format, _, suffix = name.partition(".")
    own = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}-file-"))
    path = own / f"{PLACE}.{suffix}"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        bounds_of_parts = [(0, len(data)), (len(data) // 2, len(data))]
        for bounds in (
            bounds_of_parts if may_be_cut(text_format, str(path)) else bounds_of_parts[:1]
        ):
            part = Part((FileRange(str(path), *bounds, len(data), text_format),))
            for _ in read_part(part, on_bad_document="skip"):
                pass

    return read


def seed_inputs() -> dict[str, list[bytes]]:
    """Returns sound files for every target, so small that many mutations hit what matters."""
    from scripts.soak.fuzz_seeds import codec_seeds, reader_seeds

    return reader_seeds() | codec_seeds()


def _shards() -> bytes:
    from scripts.soak.fuzz_seeds import codec_seeds

    return codec_seeds()["shards.parquet"][0]


def _describe(said: str) -> str:
    """Returns the lines with which libFuzzer and Python describe a failure."""
    lines = [line for line in said.splitlines() if re.search("Error|Exception|ERROR|SUMMARY", line)]
    return " | ".join(lines)[-1500:] or said[-500:]


def _number(pattern: str, text: str) -> int:
    """Returns the last number that the pattern finds, or 0 if it finds none."""
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


if __name__ == "__main__":
    sys.exit(main())
