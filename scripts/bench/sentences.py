"""F1 of sentence boundaries on hand-made cases and on web text, and MB per CPU-second, beside peers: one JSON line.

    python -m scripts.bench.sentences --golden golden_rules.jsonl --paragraphs
    en_ewt-ud-dev.sentences.jsonl.zst \
        --speed 'wiki_en/wiki_en_00*.zst'

`--golden`: JSON Lines with lang, text and sentences. `--paragraphs`: JSON Lines with paragraphs of
text and the [start, end) of their sentences. Beside ours stand plain `sentencex` and a regular
expression (a full stop, question or exclamation mark, then space). A boundary is where a sentence
ends, counted in characters that are no space; the end of the text, which everyone finds, is left
out.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import sentencex
import zstandard

from pipeline.text.cleaning import clean_text
from pipeline.text.sentences import split_sentences
from scripts.bench.measured import cpu_seconds, print_result, read_documents, summarize

Splitter = Callable[[str, str], Sequence[str]]
Case = tuple[str, str, list[str]]  # language, text, sentences

_STOP = re.compile(r"(?<=[.!?])\s+|\n+|(?<=[\u3002\uff01\uff1f])")


def split_plainly(text: str, _: str) -> list[str]:
    """The regular expression everyone writes first."""
    return [each for each in _STOP.split(text) if each]


SPLITTERS: dict[str, Splitter] = {
    "ours": split_sentences,
    "sentencex": lambda text, language: sentencex.segment(language, text),
    "regex": split_plainly,
}


def main() -> int:
    """Scores, measures, prints."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--golden")
    parser.add_argument("--paragraphs")
    parser.add_argument(
        "--language", default="en", help="of the paragraphs and of the text for speed"
    )
    parser.add_argument("--speed", nargs="+", default=[])
    parser.add_argument("--repeat", type=int, default=3)
    config = parser.parse_args()
    cases = {"golden": list(read_golden(config.golden)) if config.golden else []}
    cases["paragraphs"] = (
        list(read_paragraphs(config.paragraphs, config.language)) if config.paragraphs else []
    )
    print_result(
        "sentences",
        vars(config),
        ("sentencex",),
        cases={name: len(found) for name, found in cases.items()},
        f1={
            name: {data: score(splitter, found) for data, found in cases.items() if found}
            for name, splitter in SPLITTERS.items()
        },
        f1_by_language=score_languages(cases["golden"]),
        megabytes_per_cpu_second=measure_speed(config.speed, config.language, config.repeat)
        if config.speed
        else None,
    )
    return 0


def read_golden(path: str) -> Iterator[Case]:
    """Cases of one text each; those meant for text with markup to be taken out first are left out."""
    for line in _read_lines(path):
        case = json.loads(line)
        if "CLEAN" not in case["set"]:
            yield case["lang"], clean_text(case["text"]), case["sentences"]


def read_paragraphs(path: str, language: str) -> Iterator[Case]:
    """A case for each paragraph."""
    for line in _read_lines(path):
        for paragraph in json.loads(line)["paragraphs"]:
            text = paragraph["text"]
            yield (
                language,
                clean_text(text),
                [text[start:end] for start, end in paragraph["sentences"]],
            )


def score(splitter: Splitter, cases: Iterable[Case]) -> dict[str, float]:
    """F1, precision and recall of the boundaries, in per cent."""
    num_right = num_found = num_true = 0
    for language, text, sentences in cases:
        found, true = find_boundaries(splitter(text, language)), find_boundaries(sentences)
        num_right += len(found & true)
        num_found += len(found)
        num_true += len(true)
    precision, recall = num_right / max(1, num_found), num_right / max(1, num_true)
    f1 = 2 * num_right / max(1, num_found + num_true)
    return {
        name: round(100 * value, 2)
        for name, value in (("f1", f1), ("precision", precision), ("recall", recall))
    }


def find_boundaries(sentences: Sequence[str]) -> set[int]:
    """How many characters other than space stand before each boundary inside the text."""
    ends, position = [], 0
    for sentence in sentences:
        position += len("".join(sentence.split()))
        ends.append(position)
    return set(ends) - {position, 0}


def score_languages(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """F1 of every splitter for each language."""
    languages = sorted({language for language, _, _ in cases})
    return {
        language: {
            name: score(splitter, [case for case in cases if case[0] == language])["f1"]
            for name, splitter in SPLITTERS.items()
        }
        for language in languages
    }


def measure_speed(
    patterns: Sequence[str], language: str, repeat: int
) -> dict[str, dict[str, object]]:
    """MB per CPU-second of every splitter."""
    texts = read_documents(patterns)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6

    def split_all(splitter: Splitter) -> None:
        for text in texts:
            splitter(text, language)

    return {
        name: summarize(
            [megabytes / cpu_seconds(partial(split_all, splitter)) for _ in range(repeat)]
        )
        for name, splitter in SPLITTERS.items()
    }


def _read_lines(path: str) -> list[str]:
    data = Path(path).read_bytes()
    return (
        (zstandard.decompress(data, 2**28) if path.endswith(".zst") else data).decode().splitlines()
    )


if __name__ == "__main__":
    sys.exit(main())
