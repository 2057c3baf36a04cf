"""Gives the compiled reader of wikitext damaged pieces of pages, under gcc's sanitizers.

    BEAMBERT_TEST_DATA=DATA python scripts/soak/fuzz_wikitext.py --seconds 600 --output
    scripts/soak/results/DATE.json

Pages are the hard cases of tests/pipeline/wikitext_cases.txt and, where DATA has them, those of
`wikitext_real/*.jsonl.zst`. A piece of a page loses, doubles, moves or gets markup; then it is read
to the bytes of the definition (pipeline/wiki/markup.py), which are never more than half again those
of the piece. At the end the process may not have grown.
"""

import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.storage.compression import decompress
from pipeline.wiki import markup
from pipeline.wiki.inline_templates import show
from pipeline.wiki.variants import convert
from pipeline.wiki.wikitext import TABLES
from scripts.checkout import ROOT
from scripts.soak.sanitized import run_sanitized

MODULE = "pipeline.wiki._wikitext"
MARKUP = """
{{ }} {{{ }}} [[ ]] [ ] | {| |} <ref> </ref> <ref/> <ref <!-- --> <nowiki> </nowiki> <pre> <math>
</math> <li> </li> <table> </table> <br> == '' __TOC__ http:// mailto: [[File: .jpg|thumb| &amp;
&#8211; &#x10FFFF; &#xD800; & < > ( ) , ; {{nowrap| {{lang|fr| {{s-|V}} {{convert|5|to|7|km}}
{{val|5|e=6}} text= formatnum: nowrap -{ }- -{zh-hans: ; -{H| ---- <references> <br/>
\uff08 \uff09 \u3001
"""
PUT = [
    *MARKUP.split(),
    "\n",
    "\n{|\n",
    "\n|}\n",
    "\n* ",
    " ",
    "\0",
    "\u00a0",
    "\u3000",
    "\U0001f600",
]
MAX_PIECE = 1500
CALLS_A_ROUND = 2000
MAX_GROWTH_BYTES = 200 * 2**20


def fuzz(modules: Mapping[str, Any], seconds: float, seed: int) -> dict[str, int]:
    """Counts the calls; AssertionError if the definition differs, or for bytes or memory."""
    read = modules[MODULE].render
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    pages = list(read_pages())
    num_calls = before = 0
    while time.monotonic() < end:
        for _ in range(CALLS_A_ROUND):
            text = damage(rng, rng.choice(pages))
            first = read(text, is_hidden, show, convert, *TABLES)
            assert first == markup.render(text, is_hidden), f"the definition differs: {text!r}"
            assert len(first.encode()) <= 1.5 * len(text.encode()), f"longer than it was: {text!r}"
        num_calls += CALLS_A_ROUND
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if num_calls == 100 * CALLS_A_ROUND:  # the sanitizer's own stores are full by then
            before = peak
    assert not before or peak - before < MAX_GROWTH_BYTES, (
        f"memory grew from {before} to {peak} bytes"
    )
    return {"calls": num_calls, "pages": len(pages)}


def is_hidden(title: str) -> bool:
    """Returns whether a link is hidden in a wiki whose namespaces have English names."""
    return title.partition(":")[0].strip().lower() in ("file", "category")


def damage(rng: random.Random, page: str) -> str:
    """Returns a piece of a page with up to 8 changes."""
    start = rng.randrange(len(page))
    length = rng.choice((30, 200, MAX_PIECE))
    text = page[start : start + length]
    for _ in range(rng.randint(0, 8)):
        at = rng.randint(0, len(text))
        size = rng.choice((0, 1, 2, 20))
        put = rng.choice(
            ("", rng.choice(PUT), rng.choice(PUT) * rng.choice((1, 2, 130)), text[at : at + size])
        )
        text = text[:at] + put + text[at + size * rng.randint(0, 1) :]
    return text


def read_pages() -> Iterator[str]:
    """Yields the wikitext of the test cases, and of real pages if the test data are there."""
    yield from (ROOT / "tests/pipeline/wikitext_cases.txt").read_text().split("#### case: ")[1:]
    for path in sorted(
        Path(os.environ.get("BEAMBERT_TEST_DATA", ""), "data/wikitext_real").glob("*.jsonl.zst")
    ):
        for line in b"".join(decompress([path.read_bytes()], str(path))).splitlines():
            yield json.loads(line)["wikitext"] or " "


if __name__ == "__main__":
    sys.exit(run_sanitized(__file__, __doc__ or "", [MODULE], fuzz))
