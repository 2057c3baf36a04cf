"""A plan's numbers against the build that follows it."""

import bz2
import gzip
import json
import random
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset
from pipeline.stages import plan as plans
from pipeline.stages.build import find_corpus
from pipeline.stages.build_shards import instance_rule


@pytest.mark.processes
def test_a_plan_says_what_the_build_makes(texts, vocab_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "pipeline.stages.plan._PLACE_BYTES", 2**16
    )  # eight of them are a third of the input
    rows = [json.dumps({"text": text + f" {copy}."}) for copy in range(20) for text in texts]
    (tmp_path / "a.jsonl").write_text("\n".join(rows[:900]) + "\n")
    (tmp_path / "b.jsonl").write_text("\n".join(rows[900:]) + "\n")
    words = [
        "build",
        "--input",
        tmp_path / "a.jsonl",
        tmp_path / "b.jsonl",
        "--output",
        tmp_path / "data",
    ]
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
    plan = plans.make_plan(settings, corpus.parts, instance_rule)

    assert run_program("python -m pipeline", "Tests.", COMMANDS, words) == 0
    dataset = open_dataset(str(tmp_path / "data"))
    counters, train = dataset.manifest.counters, dataset.shards("train", 64, 0)
    assert plan.buckets == len(train)
    assert sum(each.documents for each in plan.sources) == pytest.approx(
        counters["documents"], rel=0.1
    )
    assert plan.cleaned_bytes == pytest.approx(counters["cleaned_bytes"], rel=0.1)
    assert sum(each.tokens for each in plan.sources) == pytest.approx(
        counters["distinct_tokens"], rel=0.1
    )
    (length,) = plan.lengths
    assert length.instances == pytest.approx(sum(shard.instances for shard in train), rel=0.1)
    assert length.instances * length.bytes_each == pytest.approx(
        sum(shard.num_bytes for shard in train), rel=0.2
    )
    stored = sum(path.stat().st_size for path in (tmp_path / "data/tokens").glob("*-00000.*s"))
    assert plan.token_bytes == pytest.approx(stored, rel=0.2)

    assert plan.worker_seconds > 0


@pytest.mark.parametrize(
    "suffix", [".jsonl.gz", ".jsonl.zst", ".jsonl.bz2", ".jsonl.zip", ".parquet", ".xml.bz2"]
)
def test_a_plan_scales_by_what_its_sample_took_of_the_stored_bytes(
    suffix, vocab_file, tmp_path, monkeypatch
):
    monkeypatch.setattr("pipeline.stages.plan._PLACE_BYTES", 2**15)
    draw = random.Random(3)
    copies = [
        " ".join(f"{draw.choice('bcdfgk')}a{draw.randrange(10**6)}" for _ in range(80))
        for _ in range(4000)
    ]
    for number in range(2):
        write_as(suffix, copies[number::2], tmp_path / f"{number}{suffix}")
    settings = BuildSettings(
        output=str(tmp_path / "data"), input=[f"{tmp_path}/*{suffix}"], vocab=str(vocab_file)
    )
    corpus = find_corpus(settings)
    read = []
    monkeypatch.setattr(
        plans, "filter_documents", lambda own, _: read.append(len(own.documents)) or own
    )
    plan = plans.make_plan(settings, corpus.parts, instance_rule)
    assert sum(read) < 0.75 * len(copies), "it is a sample"
    assert sum(each.documents for each in plan.sources) == pytest.approx(len(copies), rel=0.15)


def write_as(suffix, texts, path):
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    if suffix == ".jsonl.gz":
        path.write_bytes(gzip.compress(rows))
    elif suffix == ".jsonl.zst":
        path.write_bytes(zstandard.compress(rows))
    elif suffix == ".jsonl.bz2":
        path.write_bytes(bz2.compress(rows, 1))
    elif suffix == ".jsonl.zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for start in range(0, len(texts), 50):
                own = "".join(
                    json.dumps({"text": text}) + "\n" for text in texts[start : start + 50]
                )
                archive.writestr(f"{start}.jsonl", own)
    elif suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), path)
    else:
        pages = [
            f"<page><title>{n}</title><ns>0</ns><revision><text>{text}</text></revision></page>\n"
            for n, text in enumerate(texts)
        ]
        streams = ["".join(pages[start : start + 100]) for start in range(0, len(pages), 100)]
        path.write_bytes(
            b"".join(
                bz2.compress(each.encode()) for each in ["<mediawiki>\n", *streams, "</mediawiki>"]
            )
        )


@pytest.mark.processes
def test_a_plan_names_the_file_that_one_worker_must_read(texts, vocab_file, tmp_path, capsys):
    rows = "".join(
        json.dumps({"text": text + f" {copy}."}) + "\n" for copy in range(9) for text in texts
    )
    path = tmp_path / "long.jsonl.gz"
    path.write_bytes(gzip.compress(rows.encode(), 1))
    fixed = (
        "--output",
        tmp_path / "data",
        "--vocab",
        vocab_file,
        "--plan",
        "true",
        "--part_bytes",
        2048,
    )
    for name, said in (("long.jsonl.gz", True), ("long.jsonl", False)):
        (tmp_path / "long.jsonl").write_text(rows)
        words = ("build", "--input", tmp_path / name, *fixed)
        assert (
            run_program("python -m pipeline", "Tests.", COMMANDS, [str(word) for word in words])
            == 0
        )
        printed = capsys.readouterr().out
        assert (f"warning: {path} cannot be cut: one worker reads its " in printed) == said
        assert (
            "1 file(s) are more than 8 parts long, cut such into files of 2.05 kB" in printed
        ) == said


@pytest.mark.parametrize("copies", [1, 400], ids=["read whole", "sampled"])
def test_each_format_of_a_source_is_sampled_and_scaled(copies, vocab_file, tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.stages.plan._PLACE_BYTES", 2**10)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(10):
        text = f"river mountain engine {number}. " * 5
        (corpus / f"a{number}.txt").write_text(text * copies)
        (corpus / f"b{number}.jsonl").write_text((json.dumps({"text": text}) + "\n") * copies)
    settings = BuildSettings(str(tmp_path / "out"), [str(corpus)], vocab=str(vocab_file))
    plan = plans.make_plan(settings, find_corpus(settings).parts, instance_rule)
    assert sum(each.documents for each in plan.sources) == pytest.approx(10 + 10 * copies, rel=0.1)
    assert plan.cleaned_bytes == pytest.approx(10 * copies * 2 * 125, rel=0.1)
