"""A plan's numbers against the build that follows it."""

import bz2
import gzip
import json
import random
import re
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset
from pipeline.stages import plan as plans
from pipeline.stages.build import find_corpus
from pipeline.stages.build_shards import instance_rule
from tests.pipeline.programs import run

UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def number(plan, said):
    """The number that a plan has in place of N: with its unit, where one follows it."""
    found = re.search(re.escape(said).replace("N", r"([\d.,]+)( [kMG]?B\b)?"), plan)
    return float(found[1].replace(",", "")) * UNITS[(found[2] or "B").strip()]


def describe(settings):
    return plans.describe_plan(settings, 1, find_corpus(settings).parts, instance_rule)


@pytest.mark.processes
def test_a_plan_says_what_the_build_makes(texts, vocab_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plans, "_SAMPLE_BYTES", 2**19)  # a third of the input
    rows = [json.dumps({"text": text + f" {copy}."}) for copy in range(20) for text in texts]
    (tmp_path / "a.jsonl").write_text("\n".join(rows[:900]) + "\n")
    (tmp_path / "b.jsonl").write_text("\n".join(rows[900:]) + "\n")
    inputs = (tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    words = ("build", "--input", *inputs, "--output", tmp_path / "data", "--vocab", vocab_file)
    words = (*words, "--seq_lens", 64, "--passes", 2, "--workers", 1)
    assert run(*words, "--plan", "true") == 0
    plan = capsys.readouterr().out
    assert "input: 2 file(s)" in plan
    assert "nothing has been written" in plan
    assert not (tmp_path / "data").exists()

    assert run(*words) == 0
    dataset = open_dataset(str(tmp_path / "data"))
    counters, train = dataset.manifest.counters, dataset.shards("train", 64, 0)
    stored = sum(path.stat().st_size for path in (tmp_path / "data/tokens").glob("*-00000.*s"))
    for said, made, tolerance in (
        ("about N documents", counters["documents"], 0.1),
        (" N of text", counters["cleaned_bytes"], 0.1),
        (" N tokens", counters["distinct_tokens"], 0.1),
        ("then N train bucket(s)", len(train), 0),
        ("L64: N train instances a pass", sum(shard.instances for shard in train), 0.1),
        (" a pass, N,", sum(shard.num_bytes for shard in train), 0.2),
        ("storage: N of tokens", stored, 0.2),
    ):
        assert number(plan, said) == pytest.approx(made, rel=tolerance), said


@pytest.mark.parametrize(
    "suffix", [".jsonl.gz", ".jsonl.zst", ".jsonl.bz2", ".jsonl.zip", ".parquet", ".xml.bz2"]
)
def test_a_plan_scales_by_what_its_sample_took_of_the_stored_bytes(
    suffix, vocab_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(plans, "_SAMPLE_BYTES", 2**18)
    draw = random.Random(3)
    copies = [
        " ".join(f"{draw.choice('bcdfgk')}a{draw.randrange(10**6)}" for _ in range(80))
        for _ in range(4000)
    ]
    for place in range(2):
        write_as(suffix, copies[place::2], tmp_path / f"{place}{suffix}")
    read = []
    monkeypatch.setattr(
        plans, "filter_documents", lambda own, _: read.append(len(own.documents)) or own
    )
    output, inputs = str(tmp_path / "data"), [f"{tmp_path}/*{suffix}"]
    plan = describe(BuildSettings(output=output, input=inputs, vocab=str(vocab_file)))
    assert sum(read) < 0.75 * len(copies), "it is a sample"
    assert number(plan, "about N documents") == pytest.approx(len(copies), rel=0.15)


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
    (tmp_path / "long.jsonl").write_text(rows)
    fixed = ("--output", tmp_path / "data", "--vocab", vocab_file, "--part_bytes", 2048)
    for name, said in (("long.jsonl.gz", True), ("long.jsonl", False)):
        assert run("build", "--input", tmp_path / name, *fixed, "--plan", "true") == 0
        printed = capsys.readouterr().out
        assert (f"warning: {path} cannot be cut: one worker reads its " in printed) == said
        cure = "1 file(s) are more than 8 parts long, cut such into files of 2.05 kB"
        assert (cure in printed) == said


@pytest.mark.parametrize("copies", [1, 400], ids=["read whole", "sampled"])
def test_each_format_of_a_source_is_sampled_and_scaled(copies, vocab_file, tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "_SAMPLE_BYTES", 2**13)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for place in range(10):
        text = f"river mountain engine {place}. " * 5
        (corpus / f"a{place}.txt").write_text(text * copies)
        (corpus / f"b{place}.jsonl").write_text((json.dumps({"text": text}) + "\n") * copies)
    options = {"vocab": str(vocab_file), "part_bytes": 2**12}
    plan = describe(BuildSettings(str(tmp_path / "out"), [str(corpus)], **options))
    made = 10 + 10 * copies
    assert number(plan, "about N documents") == pytest.approx(made, rel=0.1)
    assert number(plan, " N of text") == pytest.approx(10 * copies * 2 * 125, rel=0.1)
