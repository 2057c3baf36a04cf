"""A small corpus whose documents share no sentence, a vocabulary for it, and a mixture."""

import json

import pytest

from pipeline.shards.dataset import open_dataset
from tests.datasets import write_vocab
from tests.pipeline.programs import run, write_texts

WORDS = (  # noqa: SIM905
    "river mountain engine letter window garden silver winter market captain doctor history "
    "village machine language island question evening picture business morning country "
    "several believe continue between children"
).split()


def make_text(number, num_sentences=12):
    sentences = []
    for row in range(num_sentences):
        first, step = number * 7 + row * 3, 1 + number % 5
        words = [WORDS[(first + place * step) % len(WORDS)] for place in range(6 + row % 5)]
        sentences.append(" ".join(words).capitalize() + f" {number}.")
    half = num_sentences // 2
    return " ".join(sentences[:half]) + "\n" + " ".join(sentences[half:])


@pytest.fixture(scope="session")
def texts():
    return [make_text(number) for number in range(120)]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory, texts):
    """Two JSONL files of 120 documents."""
    folder = tmp_path_factory.mktemp("corpus")
    write_texts(folder / "a.jsonl", texts[:70])
    write_texts(folder / "b.jsonl", texts[70:])
    return folder


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory):
    return write_vocab(tmp_path_factory.mktemp("vocab") / "vocab.txt", WORDS)


@pytest.fixture(scope="session")
def mixture_config(texts, tmp_path_factory):
    """Two sources that share ten documents; a pass uses the second thrice, the first by half."""
    folder = tmp_path_factory.mktemp("sources")
    write_texts(folder / "news.jsonl", texts[:70], "news")
    write_texts(folder / "books.jsonl", texts[60:], "books")
    news = {"name": "news", "input": [f"{folder}/news.jsonl"], "text_field": "news"}
    books = {"name": "books", "input": [f"{folder}/books.jsonl"], "text_field": "books"}
    sources = [
        news | {"weight": 0.5, "licence": "CC0-1.0"},
        books | {"weight": 3, "language": "de"},
    ]
    settings = {"sources": sources, "passes": 2, "seq_lens": [64]}
    settings |= {"num_buckets": 4, "part_bytes": 4096}
    folder.joinpath("config.yaml").write_text(json.dumps(settings))  # JSON is YAML too
    return folder / "config.yaml"


@pytest.fixture(scope="session")
def mixture(mixture_config, vocab_file, tmp_path_factory):
    """The dataset of these sources."""
    output = str(tmp_path_factory.mktemp("mixture") / "data")
    flags = ("--config", mixture_config, "--vocab", vocab_file, "--output", output)
    assert run("build", *flags, "--workers", 1) == 0
    return open_dataset(output)
