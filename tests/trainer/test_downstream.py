"""scripts/bench/downstream.py: rules that cut files, what variants begin with, the table."""

import itertools
import json

import pytest
import zstandard

from scripts.bench.downstream import format_table, keeps, summarize
from scripts.bench.downstream_data import cut_articles, cut_sentences, is_held_out


def test_sentences_are_held_out_by_their_id_alone(tmp_path):
    names = [f"doc-{number:04d}" for number in range(400)]
    sentences = [f"# sent_id = {name}\n# text = x\n1\tx\tO" for name in names]
    source = tmp_path / "all.iob2.zst"
    source.write_bytes(zstandard.compress(("\n\n".join(sentences) + "\n\n").encode()))
    files = cut_sentences(source, tmp_path / "work")
    assert [path.name for path in files] == ["all.train.iob2", "all.validation.iob2"]
    train, validation = (path.read_text().strip().split("\n\n") for path in files)
    assert validation == [*itertools.compress(sentences, map(is_held_out, names))]
    assert sorted(train + validation) == sorted(sentences)
    assert 50 < len(validation) < 110


def test_articles_are_held_out_by_title(tmp_path):
    source = tmp_path / "half.json.zst"
    articles = [{"title": title, "paragraphs": []} for title in "hbgacfed"]
    text = json.dumps({"version": "v2.0", "data": articles})
    source.write_bytes(zstandard.compress(text.encode()))
    files = cut_articles(source, tmp_path / "work")
    train, validation = (json.loads(path.read_text()) for path in files)
    assert [article["title"] for article in validation["data"]] == ["a", "e"]
    assert [article["title"] for article in train["data"]] == list("hbgcfd")
    assert train["version"] == validation["version"] == "v2.0"


def test_what_variants_begin_with():
    names = ["bert.embeddings.word.weight", "bert.layers.0.query.weight"]
    names += ["bert.pooler.weight", "mlm_head.bias"]
    variants = ("pretrained", "random", "random-layers", "frozen")
    kept = {variant: [keeps(variant, name) for name in names] for variant in variants}
    assert kept["pretrained"] == kept["frozen"] == [True] * 4
    assert kept["random"] == [False] * 4
    assert kept["random-layers"] == [True, False, False, False]


def test_the_table_has_means_errors_and_differences():
    scores = {"pretrained": [0.8, 0.82, 0.84], "random": [0.7, 0.7, 0.76]}
    rows = [
        {"run": {"task": "sst2", "variant": variant}, "metric": "accuracy", "score": score}
        for variant, values in scores.items()
        for score in values
    ]
    found = summarize(rows)["sst2"]
    assert found["pretrained"]["mean"] == pytest.approx(0.82)
    assert found["pretrained"]["standard_error"] == pytest.approx(0.02 / 3**0.5)
    assert found["random"]["standard_error"] == pytest.approx(0.02)
    # 0.1 apart, with a standard error of sqrt(0.02**2 + 0.02**2 / 3)
    line = "| sst2 | accuracy | 82.00 ± 1.15 | 72.00 ± 2.00 (+4.3 SE) |"
    assert format_table(rows, ["pretrained", "random"]).splitlines()[2] == line
