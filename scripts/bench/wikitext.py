"""The compiled reader of wikitext against its definition: speed, every difference, and hostile markup; one JSON line.

    python -m scripts.bench.wikitext --input 'wikitext_real/*.jsonl.zst' --differences
    differences.txt python -m scripts.bench.wikitext --input enwiki-pages-articles.xml.bz2

The input is JSON lines with the field `wikitext`, or MediaWiki dumps. A paragraph agrees where both
readers give it. A paragraph that one reader alone gives is classified by what the other has of it:

- residue: the same but for tags, braces and brackets that were never closed, which one of the two
  leaves in the text;
- split: the same words, with other borders between paragraphs;
- other: neither; these are to be read, one by one (`--differences`).

`templates` says what stands within sentences but is not shown, for 1,000 sentences, without and
with pipeline/wiki/inline_templates.py:

- holes: templates with a space or a bracket before them and text behind, in no paragraph's first
  place; pronunciations are counted by themselves, and notes are among the others (`--holes` lists
  them by name, to be read);
- scars: brackets and commas that stand next to nothing.

`--peers` reads the same pages with wikrs (its parser, and its stripper) and wicket, which cargo
builds.

`hostile` is the time for a byte of 10 MB of one opener, in times of the articles' own.
"""

import argparse
import glob
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from pipeline.documents.mediawiki import read_pages
from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.storage.compression import decompress
from pipeline.wiki import BadPageError, inline_templates, wikitext
from scripts.bench.measured import cpu_seconds, print_result, summarize

HOSTILE = [
    "{{",
    "{{a|",
    "[[",
    "[[a|",
    "[[File:a|",
    "<ref",
    "<ref>",
    "{|",
    "<math>",
    "<!--",
    "<li>",
    "]]",
    "}}",
    "&",
]
HOSTILE_BYTES = 10_000_000
_MARKED = re.compile("\ue001([^\ue002]*)\ue002")
_HOLE = re.compile("(?<=[^.!?\u3002\ue002 ] |.[(\uff08])\ue001([^\ue002]*)\ue002(?= ?[^ \ue001])")
_PRONUNCIATION = re.compile("IPA|API|МФА|pronunciation|respell", re.IGNORECASE)
_SCAR = re.compile(r"[(\uff08]\s*[,;)\u3001\uff0c\uff09]|[,;\u3001\uff0c]\s*[)\uff09]| ,|, ,")
_SENTENCE_END = re.compile(r"[.!?\u3002\u0964](?:\s|$)|\u3002")
_RESIDUE = re.compile(r"</?\w[^<>]*>|\{\{|\}\}|\[\[|\]\]|\{\||\|\}")


def main() -> int:
    """Reads the pages with both, compares, prints."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--input", required=True)
    parser.add_argument(
        "--differences", type=Path, help="file for the paragraphs that differ, with what they are"
    )
    parser.add_argument(
        "--holes",
        type=Path,
        help="file for the names of templates that are not shown, the commonest first",
    )
    parser.add_argument(
        "--peers", action="store_true", help="measure wikrs and wicket too, built by cargo"
    )
    parser.add_argument("--repeat", type=int, default=5)
    config = parser.parse_args()
    assert wikitext.compiled, "pipeline.wiki._wikitext is not built"
    pages = [(title, text) for title, text in read_input(config.input) if text]
    megabytes = sum(len(text.encode()) for _, text in pages) / 1e6
    runs = [
        cpu_seconds(lambda: [wikitext.parse_wikitext(text) for _, text in pages])
        for _ in range(config.repeat)
    ]
    peers = measure_peers([text for _, text in pages], config.repeat) if config.peers else {}
    defining = time.process_time()
    found = list(compare(pages))
    defining = time.process_time() - defining
    kinds = Counter(kind for kind, *_ in found)
    if config.differences:
        kept = (each for each in found if each[0] != "agrees")
        config.differences.write_text(
            "".join(f"{kind} {title}\n- {a}\n+ {b}\n" for kind, title, a, b in kept)
        )
    without, with_table = (
        count_holes(pages, lambda _: ""),
        count_holes(pages, inline_templates.show),
    )
    if config.holes:
        rows = (
            f"{number} {name}: {with_table.examples[name]}\n"
            for name, number in with_table.names.most_common()
        )
        config.holes.write_text("".join(rows))
    print_result(
        "wikitext",
        {name: str(value) for name, value in vars(config).items()},
        ("mwparserfromhell",),
        pages=len(pages),
        megabytes=round(megabytes, 2),
        compiled_mb_per_cpu_second=summarize([megabytes / seconds for seconds in runs]),
        peers_mb_per_cpu_second={
            name: summarize([megabytes / each for each in seconds])
            for name, seconds in peers.items()
        },
        definition_mb_per_cpu_second=round(megabytes / defining, 2),
        paragraphs=dict(kinds),
        agreeing=round(kinds["agrees"] / max(1, sum(kinds.values())), 5),
        templates={"without": without.summarize(), "with": with_table.summarize()},
        hostile={
            opener: round(measure_hostile(opener) / (min(runs) / megabytes), 2)
            for opener in HOSTILE
        },
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
            records = (
                record for record in read_pages(each) if not record.dropped and record.error is None
            )
            yield from ((record.place, record.data.decode()) for record in records)


def compare(pages: list[tuple[str, str]]) -> Iterator[tuple[str, str, str, str]]:
    """Kind, title and the two texts of every paragraph that either reader gives."""
    for title, text in pages:
        try:
            defined = Counter(wikitext.define_paragraphs(text).split("\n"))
        except BadPageError as error:
            defined = Counter([f"({error})"])
        found = Counter(wikitext.parse_wikitext(text).split("\n"))
        yield from (("agrees", title, each, each) for each in (defined & found).elements() if each)
        yield from classify(title, [*(defined - found).elements()], [*(found - defined).elements()])


def classify(
    title: str, defined: list[str], found: list[str]
) -> Iterator[tuple[str, str, str, str]]:
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


@dataclass
class Holes:
    """What stands within sentences but is not shown."""

    names: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    num_scars: int = 0
    num_sentences: int = 0

    def summarize(self) -> dict[str, float]:
        """Numbers for 1,000 sentences, and of sentences."""
        pronunciations = sum(
            number for name, number in self.names.items() if _PRONUNCIATION.match(name)
        )
        numbers = {
            "holes": self.names.total() - pronunciations,
            "pronunciations": pronunciations,
            "scars": self.num_scars,
        }
        thousands = max(1, self.num_sentences) / 1000
        return {"sentences": self.num_sentences} | {
            name: round(each / thousands, 2) for name, each in numbers.items()
        }


def count_holes(pages: list[tuple[str, str]], show: Callable[[str], str]) -> Holes:
    """Reads the pages by the definition; templates of which `show` shows nothing leave their name in brackets."""

    def mark(call: str) -> str:
        call = _MARKED.sub("", call)
        return show(call) or f"\ue001{' '.join(call.partition('|')[0].split())}\ue002"

    found = Holes()
    never = re.compile("(?!)")
    without_tidying: dict[str, Any] = (
        {} if show("nowrap|a") else {"_STOPS_IN_BRACKETS": never, "_LONE_COMMAS": never}
    )
    with mock.patch.multiple(wikitext, show=mark, _blank_out=str, **without_tidying):
        for _, text in pages:
            try:
                lines = wikitext.define_paragraphs(text).split("\n")
            except BadPageError:
                continue
            for line in lines:
                for hole in _HOLE.finditer(line):
                    found.names[hole[1]] += 1
                    around = line[max(0, hole.start() - 60) : hole.end() + 60]
                    found.examples.setdefault(hole[1], _MARKED.sub("[]", around))
                found.num_sentences += max(1, len(_SENTENCE_END.findall(line)))
            tidied = "\n".join(lines) if without_tidying else wikitext.parse_wikitext(text)
            found.num_scars += len(_SCAR.findall(_MARKED.sub("", tidied)))
    return found


def measure_peers(texts: list[str], repeat: int) -> dict[str, list[float]]:
    """CPU seconds of other readers for all pages, by their names.

    Raises:
        AssertionError: One of them fails on a page.
    """
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        pages = Path(folder, "pages")
        pages.write_bytes(
            b"".join(len(data).to_bytes(8, "little") + data for data in map(str.encode, texts))
        )
        source = shutil.copytree(Path(__file__).with_name("wikitext_peers"), Path(folder, "source"))
        command = [
            "cargo",
            "run",
            "--release",
            "--quiet",
            "--manifest-path",
            str(source / "Cargo.toml"),
        ]
        result = subprocess.run(
            [*command, "--", str(pages), str(repeat)], check=True, capture_output=True, text=True
        )
    for name, seconds, failed in map(str.split, result.stdout.splitlines()):
        assert failed == "0", f"{name} failed on {failed} pages"
        found.setdefault(name, []).append(float(seconds))
    return found


def _words(text: str) -> str:
    return "".join(text.split())


def measure_hostile(opener: str) -> float:
    """CPU seconds a MB of one opener over and over."""
    text = opener * (HOSTILE_BYTES // len(opener))
    return cpu_seconds(lambda: wikitext.parse_wikitext(text)) / (HOSTILE_BYTES / 1e6)


if __name__ == "__main__":
    sys.exit(main())
