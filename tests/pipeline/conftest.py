"""A small corpus made of sentences that no two documents share, and a vocabulary for it."""

import json

import pytest

WORDS = (  # noqa: SIM905
    "river mountain engine letter window garden silver winter market captain doctor history village machine"
    " language island question evening picture business morning country several believe continue between children"
).split()


def make_text(number, num_sentences=12):
    sentences = []
    for row in range(num_sentences):
        words = [WORDS[(number * 7 + row * 3 + step * (1 + number % 5)) % len(WORDS)] for step in range(6 + row % 5)]
        sentences.append(" ".join(words).capitalize() + f" {number}.")
    return " ".join(sentences[: num_sentences // 2]) + "\n" + " ".join(sentences[num_sentences // 2 :])


@pytest.fixture(scope="session")
def texts():
    return [make_text(number) for number in range(120)]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory, texts):
    """Two JSONL files of 120 documents."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, part in (("a.jsonl", texts[:70]), ("b.jsonl", texts[70:])):
        folder.joinpath(name).write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    return folder


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
    pieces += [*"0123456789", *(f"##{digit}" for digit in "0123456789")]
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n")
    return path
