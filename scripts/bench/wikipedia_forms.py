"""What reading Wikipedia costs in each of its forms: the same articles as a dump, Parquet, search dump, WikiExtractor.

    python -m scripts.bench.wikipedia_forms --input enwiki-pages-articles.xml.bz2

The articles of the dump are read, and their paragraphs written in the other forms, each compressed
as it is published (Parquet by Snappy, the search dump by gzip and with the wikitext beside the
text, WikiExtractor's output plain). Then every form is read and cleaned in CPU seconds of this
process; one JSON line.
"""

import argparse
import bz2
import gzip
import html
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.documents.mediawiki import read_pages
from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.text.cleaning import clean_text
from pipeline.wiki.wikitext import parse_wikitext
from scripts.bench.measured import cpu_seconds, print_result, summarize
from scripts.bench.mediawiki import write_streams

Articles = Sequence[tuple[str, str, str]]


def main() -> int:
    """Writes the forms, reads them in turns, prints."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--input", required=True)
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=5)
    config = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        dump = Path(folder, "dump-multistream.xml.bz2")
        dump.write_bytes(
            b"".join(write_streams(bz2.decompress(Path(config.input).read_bytes()), config.copies))
        )
        articles = read_articles(str(dump))
        forms = {"dump": dump} | {name: Path(folder, name) for name in WRITERS}
        for name, write in WRITERS.items():
            write(articles, forms[name])
        seconds: dict[str, list[float]] = {name: [] for name in forms}
        for _ in range(config.repeat):
            for name, path in forms.items():
                seconds[name].append(measure(path, len(articles)))
        stored = {name: path.stat().st_size for name, path in forms.items()}
    text_bytes = sum(len(text.encode()) for _, text, _ in articles)
    print_result(
        "wikipedia_forms",
        vars(config),
        ("pyarrow",),
        articles=len(articles),
        text_bytes=text_bytes,
        stored_bytes=stored,
        cpu_hours_per_million_articles={
            name: summarize([each / len(articles) * 1e6 / 3600 for each in found])
            for name, found in seconds.items()
        },
        cpu_seconds_per_gb_of_text={
            name: summarize([each / text_bytes * 1e9 for each in found], 1)
            for name, found in seconds.items()
        },
    )
    return 0


def read_articles(dump: str) -> Articles:
    """Title, paragraphs and wikitext of every article."""
    ranges = [
        each for part in plan_parts(find_inputs([dump]), "mediawiki", 2**30) for each in part.ranges
    ]
    records = (
        record
        for each in ranges
        for record in read_pages(each)
        if not record.dropped and not record.error
    )
    return [(record.place, parse_wikitext(record.data), record.data.decode()) for record in records]


def write_parquet(articles: Articles, path: Path) -> None:
    """As `wikimedia/wikipedia` of the Hugging Face Hub."""
    columns = {
        "id": [str(number) for number in range(len(articles))],
        "url": [f"https://en.wikipedia.org/wiki/{number}" for number in range(len(articles))],
        "title": [title for title, _, _ in articles],
        "text": [text.replace("\n", "\n\n") for _, text, _ in articles],
    }
    pq.write_table(pa.table(columns), path, row_group_size=1000)


def write_cirrus(articles: Articles, path: Path) -> None:
    """As `enwiki-DATE-cirrussearch-content.json.gz`."""
    with gzip.open(path, "wt", compresslevel=6) as file:
        for number, (title, text, wikitext) in enumerate(articles):
            page = {
                "namespace": 0,
                "title": title,
                "text": text.replace("\n", " "),
                "source_text": wikitext,
            }
            file.write(
                json.dumps({"index": {"_type": "_doc", "_id": str(number)}})
                + "\n"
                + json.dumps(page)
                + "\n"
            )


def write_wikiextractor(articles: Articles, path: Path) -> None:
    """As WikiExtractor's `wiki_00`."""
    with path.open("w") as file:
        for number, (title, text, _) in enumerate(articles):
            name = html.escape(title)
            file.write(
                f'<doc id="{number}" url="" title="{name}">\n{name}\n\n{html.escape(text)}\n</doc>\n'
            )


WRITERS: dict[str, Callable[[Articles, Path], None]] = {
    "articles.parquet": write_parquet,
    "cirrussearch-content.json.gz": write_cirrus,
    "wiki_00": write_wikiextractor,
}


def measure(path: Path, num_articles: int) -> float:
    """CPU seconds of reading and cleaning all articles of a file.

    Raises:
        AssertionError: Other than `num_articles` were found.
    """
    found = 0

    def read() -> None:
        nonlocal found
        for part in plan_parts(find_inputs([str(path)]), "auto", path.stat().st_size):
            for document in read_part(part):
                clean_text(document.text)
                found += 1

    seconds = cpu_seconds(read)
    assert found == num_articles, f"{path.name}: {found} of {num_articles} articles"
    return seconds


if __name__ == "__main__":
    sys.exit(main())
