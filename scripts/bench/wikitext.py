"""The compiled reader of wikitext against its definition: speed, every difference, and hostile markup; one JSON line.

    python -m scripts.bench.wikitext --input 'wikitext_real/*.jsonl.zst' --differences differences.txt
    python -m scripts.bench.wikitext --input enwiki-pages-articles.xml.bz2

The input is JSON lines with the field `wikitext`, or MediaWiki dumps. A paragraph agrees where both readers give it.
A paragraph that one reader alone gives is classified by what the other has of it:

- residue: the same but for tags, braces and brackets that were never closed, which one of the two leaves in the text;
- split: the same words, with other borders between paragraphs;
- other: neither; these are to be read, one by one (`--differences`).

`hostile` is the time for a byte of 10 MB of one opener, in times of the articles' own.
"""

import argparse
import glob
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pipeline.documents import wikitext
from pipeline.documents.compression import decompress
from pipeline.documents.mediawiki import read_pages
from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.records import BadDocumentError
from scripts.bench.measured import cpu_seconds, print_result, summarize

HOSTILE = ["{{", "{{a|", "[[", "[[a|", "[[File:a|", "<ref", "<ref>", "{|", "<math>", "<!--", "<li>", "]]", "}}", "&"]
HOSTILE_BYTES = 10_000_000
_RESIDUE = re.compile(r"</?\w[^<>]*>|\{\{|\}\}|\[\[|\]\]|\{\||\|\}")


def main() -> int:
    """Reads the pages with both, compares, prints."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--input", required=True)
    parser.add_argument("--differences", type=Path, help="file for the paragraphs that differ, with what they are")
    parser.add_argument("--repeat", type=int, default=5)
    config = parser.parse_args()
    assert wikitext.compiled, "pipeline.documents._wikitext is not built"
    pages = [(title, text) for title, text in read_input(config.input) if text]
    megabytes = sum(len(text.encode()) for _, text in pages) / 1e6
    runs = [cpu_seconds(lambda: [wikitext.parse_wikitext(text) for _, text in pages]) for _ in range(config.repeat)]
    defining = time.process_time()
    found = list(compare(pages))
    defining = time.process_time() - defining
    kinds = Counter(kind for kind, *_ in found)
    if config.differences:
        kept = (each for each in found if each[0] != "agrees")
        config.differences.write_text("".join(f"{kind} {title}\n- {a}\n+ {b}\n" for kind, title, a, b in kept))
    print_result(
        "wikitext",
        {name: str(value) for name, value in vars(config).items()},
        ("mwparserfromhell",),
        pages=len(pages),
        megabytes=round(megabytes, 2),
        compiled_mb_per_cpu_second=summarize([megabytes / seconds for seconds in runs]),
        definition_mb_per_cpu_second=round(megabytes / defining, 2),
        paragraphs=dict(kinds),
        agreeing=round(kinds["agrees"] / max(1, sum(kinds.values())), 5),
        hostile={opener: round(measure_hostile(opener) / (min(runs) / megabytes), 2) for opener in HOSTILE},
    )
    return 0


def read_input(pattern: str) -> Iterator[tuple[str, str]]:
    """Title and wikitext of every page."""
    if "jsonl" in pattern:
        for path in sorted(glob.glob(pattern)):
            for line in b"".join(decompress([Path(path).read_bytes()], path)).splitlines():
                page = json.loads(line)
                yield page.get("title") or page["name"], page["wikitext"]
        return
    for part in plan_parts(find_inputs([pattern]), "auto", 2**30):
        for each in part.ranges:
            records = (record for record in read_pages(each) if not record.dropped and record.error is None)
            yield from ((record.place, record.data.decode()) for record in records)


def compare(pages: list[tuple[str, str]]) -> Iterator[tuple[str, str, str, str]]:
    """Kind, title and the two texts of every paragraph that either reader gives."""
    for title, text in pages:
        try:
            defined = Counter(wikitext.define_paragraphs(text).split("\n"))
        except BadDocumentError as error:
            defined = Counter([f"({error})"])
        found = Counter(wikitext.parse_wikitext(text).split("\n"))
        yield from (("agrees", title, each, each) for each in (defined & found).elements() if each)
        yield from classify(title, [*(defined - found).elements()], [*(found - defined).elements()])


def classify(title: str, defined: list[str], found: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """What differs in a page, the definition's paragraphs first."""
    if _words("".join(defined)) == _words("".join(found)):
        yield from (("split", title, each, "") for each in defined or found)
        return
    left = {_words(_RESIDUE.sub("", each)): each for each in found}
    for each in filter(None, defined):
        other = left.pop(_words(_RESIDUE.sub("", each)), None)
        is_residue = other is not None or not _words(_RESIDUE.sub("", each))
        yield "residue" if is_residue else "other", title, each, other or ""
    yield from (("other", title, "", each) for each in left.values() if each)


def _words(text: str) -> str:
    return "".join(text.split())


def measure_hostile(opener: str) -> float:
    """CPU seconds a MB of one opener over and over."""
    text = opener * (HOSTILE_BYTES // len(opener))
    return cpu_seconds(lambda: wikitext.parse_wikitext(text)) / (HOSTILE_BYTES / 1e6)


if __name__ == "__main__":
    sys.exit(main())
