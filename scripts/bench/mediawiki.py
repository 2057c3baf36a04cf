"""A MediaWiki dump through the tokens stage with one worker and with two, and the cost of its wikitext: one JSON line.

    python -m scripts.bench.mediawiki --input enwiki-pages-articles.xml.bz2 --vocab vocab.txt --copies 8

The dump is written anew as a multistream .bz2, PAGES_A_STREAM pages a stream, as often as `--copies` says, each time
with other titles and another first word in every article, so that none is a duplicate. Builds with one worker and with
two take turns. Seconds are those of the tokens stage, sampled (scripts/bench/stages.py says what `path_seconds` is); on
a machine that others use, look at these and at CPU seconds.
"""

import argparse
import bz2
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.documents.mediawiki import read_pages
from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.wikitext import parse_wikitext
from scripts.bench.measured import cpu_seconds, print_result, summarize
from scripts.bench.stages import run_stages

PAGES_A_STREAM = 25
_PAGE = re.compile(rb"  <page>.*?</page>\n", re.DOTALL)
_TITLE = re.compile(rb"<title>")
_TEXT = re.compile(rb"(<text[^>/]*>)(?!#)")


def main() -> int:
    """Writes the dump, builds from it, prints."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--input", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    config = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        dump = Path(folder, "dump-multistream.xml.bz2")
        dump.write_bytes(b"".join(write_streams(bz2.decompress(Path(config.input).read_bytes()), config.copies)))
        runs: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
        for _ in range(config.repeat):
            for workers, found in runs.items():
                found.append(measure_build(str(dump), config.vocab, workers, folder))
        wikitext = measure_wikitext(str(dump), config.repeat)
        size = dump.stat().st_size
    times = {
        name: {workers: summarize([run[name] for run in found]) for workers, found in runs.items()}
        for name in ("load", "seconds", "cpu_seconds", "path_seconds")
    }
    roots = {run["root_hash"] for found in runs.values() for run in found}
    assert len(roots) == 1, f"root hashes differ: {roots}"
    print_result(
        "mediawiki",
        vars(config),
        ("apache-beam", "mwparserfromhell", "numpy"),
        stored_bytes=size,
        tokens_stage=times,
        times_one_worker={
            name: round(times[name][1]["median"] / times[name][2]["median"], 2) for name in ("seconds", "path_seconds")
        },
        root_hash=roots.pop(),
        wikitext=wikitext,
    )
    return 0


def write_streams(xml: bytes, copies: int) -> Iterator[bytes]:
    """The dump's head, its pages so many times, and its end, each in bzip2 streams of their own."""
    pages = _PAGE.findall(xml)
    first, last = xml.index(pages[0]), xml.rindex(b"</page>\n") + len(b"</page>\n")
    yield bz2.compress(xml[:first])
    for copy in range(copies):
        changed = [_change(page, b"x%d " % copy) for page in pages]
        for start in range(0, len(changed), PAGES_A_STREAM):
            yield bz2.compress(b"".join(changed[start : start + PAGES_A_STREAM]))
    yield bz2.compress(xml[last:])


def measure_build(dump: str, vocab: str, workers: int, folder: str) -> dict[str, Any]:
    """What the tokens stage of a build takes, in processes of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as output:
        data = f"{output}/data"
        command = [sys.executable, "-m", "pipeline", "build", "--input", dump, "--vocab", vocab, "--output", data]
        command += ["--workers", str(workers), "--passes", "1"]
        load = os.getloadavg()[0]
        stages = run_stages(command, Path(data)).stages
        manifest = json.loads(Path(data, "manifest.json").read_text())
    return stages["tokens"] | {"load": load, "root_hash": manifest["root_hash"]}


def measure_wikitext(dump: str, repeat: int) -> dict[str, Any]:
    """MB per CPU-second of reading the dump, and of turning its first articles' wikitext into paragraphs."""
    parts = plan_parts(find_inputs([dump]), "auto", 2**20)
    wikitext: list[str] = []

    def read() -> None:
        wikitext.clear()
        records = (record for each in parts[0].ranges for record in read_pages(each))
        wikitext.extend(record.data.decode() for record in records if not record.dropped and record.error is None)

    reading = [cpu_seconds(read) for _ in range(repeat)]
    parsing = [cpu_seconds(lambda: [parse_wikitext(text) for text in wikitext]) for _ in range(repeat)]
    megabytes = sum(len(text.encode()) for text in wikitext) / 1e6
    return {
        "megabytes": round(megabytes, 2),
        "read_mb_per_cpu_second": summarize([megabytes / seconds for seconds in reading]),
        "parse_mb_per_cpu_second": summarize([megabytes / seconds for seconds in parsing]),
    }


def _change(page: bytes, word: bytes) -> bytes:
    return _TEXT.sub(lambda found: found[1] + word, _TITLE.sub(lambda found: found[0] + word, page))


if __name__ == "__main__":
    sys.exit(main())
