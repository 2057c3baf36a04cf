"""A small corpus made of sentences that no two documents share, a vocabulary for it, and a mixture of two sources."""

import json

import pytest

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.instances import pairs
from pipeline.shards.dataset import open_dataset
from tests.compiled_paths import taken_path
from tests.datasets import write_vocab

WORDS = (  # noqa: SIM905
    "river mountain engine letter window garden silver winter market captain doctor history village machine"
    " language island question evening picture business morning country several believe continue between children"
).split()


def make_text(number, num_sentences=12):
    sentences = []
    for row in range(num_sentences):
        words = [
            WORDS[(number * 7 + row * 3 + step * (1 + number % 5)) % len(WORDS)]
            for step in range(6 + row % 5)
        ]
        sentences.append(" ".join(words).capitalize() + f" {number}.")
    return (
        " ".join(sentences[: num_sentences // 2]) + "\n" + " ".join(sentences[num_sentences // 2 :])
    )


@pytest.fixture(scope="module", params=["python", "compiled"])
def each_path(request):
    """Runs a module's tests by plain Python, which is the definition, and by the compiled loops."""
    with taken_path(request.param, "pipeline.instances._pairs", pairs, "loops"):
        yield


@pytest.fixture(scope="session")
def texts():
    return [make_text(number) for number in range(120)]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory, texts):
    """Two JSONL files of 120 documents."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, part in (("a.jsonl", texts[:70]), ("b.jsonl", texts[70:])):
        folder.joinpath(name).write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in part)
        )
    return folder


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory):
    return write_vocab(tmp_path_factory.mktemp("vocab") / "vocab.txt", WORDS)


@pytest.fixture(scope="session")
def mixture_config(texts, tmp_path_factory):
    """Two sources that share ten documents; the second is used thrice, the first in every second pass."""
    folder = tmp_path_factory.mktemp("sources")
    for name, part in (("news", texts[:70]), ("books", texts[60:])):
        folder.joinpath(f"{name}.jsonl").write_text(
            "".join(json.dumps({name: text}) + "\n" for text in part)
        )
    sources = [
        {
            "name": "news",
            "input": [f"{folder}/news.jsonl"],
            "text_field": "news",
            "weight": 0.5,
            "licence": "CC0-1.0",
        },
        {
            "name": "books",
            "input": [f"{folder}/books.jsonl"],
            "text_field": "books",
            "weight": 3,
            "language": "de",
        },
    ]
    settings = {
        "sources": sources,
        "passes": 2,
        "seq_lens": [64],
        "num_buckets": 4,
        "part_bytes": 4096,
    }
    folder.joinpath("config.yaml").write_text(json.dumps(settings))  # JSON is YAML too
    return folder / "config.yaml"


@pytest.fixture(scope="session")
def mixture(mixture_config, vocab_file, tmp_path_factory):
    """The dataset of these sources."""
    output = str(tmp_path_factory.mktemp("mixture") / "data")
    words = (
        "build",
        "--config",
        mixture_config,
        "--vocab",
        vocab_file,
        "--output",
        output,
        "--workers",
        1,
    )
    assert run_program("python -m pipeline", "Tests.", COMMANDS, [str(word) for word in words]) == 0
    return open_dataset(output)
