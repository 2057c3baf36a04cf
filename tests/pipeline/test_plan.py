"""A plan's numbers against the build that follows it."""

import json

import pytest

from pipeline.build import find_corpus
from pipeline.build_shards import instance_rule
from pipeline.cli import COMMANDS
from pipeline.command_line import run_program
from pipeline.plan import make_plan
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset


def test_a_plan_says_what_the_build_makes(texts, vocab_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pipeline.plan_sample._PLACE_BYTES", 2**16)  # eight of them are a third of the input
    rows = [json.dumps({"text": text + f" {copy}."}) for copy in range(20) for text in texts]
    (tmp_path / "a.jsonl").write_text("\n".join(rows[:900]) + "\n")
    (tmp_path / "b.jsonl").write_text("\n".join(rows[900:]) + "\n")
    words = ["build", "--input", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--output", tmp_path / "data"]
    words += ["--vocab", vocab_file, "--seq_lens", 64, "--passes", 2, "--workers", 1]
    words = [str(word) for word in words]
    assert run_program("python -m pipeline", "Tests.", COMMANDS, [*words, "--plan", "true"]) == 0
    printed = capsys.readouterr().out
    assert "input: 2 file(s)" in printed
    assert "nothing has been written" in printed
    assert not (tmp_path / "data").exists()
    inputs = [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    settings = BuildSettings(
        output=str(tmp_path / "data"), input=inputs, vocab=str(vocab_file), seq_lens=[64], passes=2
    )
    corpus = find_corpus(settings)
    plan = make_plan(settings, corpus.files, corpus.parts, instance_rule)

    assert run_program("python -m pipeline", "Tests.", COMMANDS, words) == 0
    dataset = open_dataset(str(tmp_path / "data"))
    counters, train = dataset.manifest.counters, dataset.shards("train", 64, 0)
    assert plan.buckets == len(train)
    assert plan.documents == pytest.approx(counters["documents"], rel=0.1)
    assert plan.cleaned_bytes == pytest.approx(counters["cleaned_bytes"], rel=0.1)
    assert plan.tokens == pytest.approx(counters["distinct_tokens"], rel=0.1)
    (length,) = plan.lengths
    assert length.instances == pytest.approx(sum(shard.instances for shard in train), rel=0.1)
    assert length.instances * length.bytes_each == pytest.approx(sum(shard.num_bytes for shard in train), rel=0.2)
    stored = sum(path.stat().st_size for path in (tmp_path / "data/tokens").glob("*-00000.*s"))
    assert plan.token_bytes == pytest.approx(stored, rel=0.2)
    seconds = json.loads(dataset.read_file("report.json"))["build"]["seconds"]
    assert 0.1 < plan.worker_seconds / (seconds["tokens"] + seconds["shards"]) < 10  # another load on a shared machine


def test_few_places_for_many_ranks_are_said(corpus, vocab_file, capsys, tmp_path):
    words = ["build", "--input", corpus, "--vocab", vocab_file, "--output", tmp_path / "data", "--plan", "true"]
    assert run_program("python -m pipeline", "Tests.", COMMANDS, [*map(str, words)]) == 0
    assert "warning: L128: training reads 1 place(s) at once" in capsys.readouterr().out
