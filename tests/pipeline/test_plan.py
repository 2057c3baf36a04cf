"""A plan's numbers against the build that follows it."""

import bz2
import gzip
import io
import random
import re
import zipfile

import pytest
import zstandard

from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset
from pipeline.stages import plan as plans
from pipeline.stages.build_shards import instance_rule
from pipeline.stages.corpus import find_corpus
from tests.pipeline.programs import run, write_texts
from tests.pipeline.test_format_builds import write_dump, write_json_lines, write_table

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
    copies = [f"{text} {copy}." for copy in range(20) for text in texts]
    write_texts(tmp_path / "a.jsonl", copies[:900])
    write_texts(tmp_path / "b.jsonl", copies[900:])
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


def write_members(texts):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for start in range(0, len(texts), 50):
            archive.writestr(f"{start}.jsonl", write_json_lines(texts[start : start + 50]))
    return file.getvalue()


PACKED = {
    ".jsonl.gz": lambda texts: gzip.compress(write_json_lines(texts)),
    ".jsonl.zst": lambda texts: zstandard.compress(write_json_lines(texts)),
    ".jsonl.bz2": lambda texts: bz2.compress(write_json_lines(texts), 1),
    ".jsonl.zip": write_members,
    ".parquet": write_table,
    ".xml.bz2": lambda texts: b"".join(map(bz2.compress, write_dump(texts))),
}


@pytest.mark.parametrize("suffix", PACKED)
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
        (tmp_path / f"{place}{suffix}").write_bytes(PACKED[suffix](copies[place::2]))
    read, keep = [], lambda own, _: read.append(len(own.documents)) or own
    monkeypatch.setattr(plans, "filter_documents", keep)
    inputs = [f"{tmp_path}/*{suffix}"]
    plan = describe(BuildSettings(str(tmp_path / "data"), inputs, vocab=str(vocab_file)))
    assert sum(read) < 0.75 * len(copies), "it is a sample"
    assert number(plan, "about N documents") == pytest.approx(len(copies), rel=0.15)


@pytest.mark.processes
def test_a_plan_names_the_file_that_one_worker_must_read(texts, vocab_file, tmp_path, capsys):
    rows = write_json_lines([f"{text} {copy}." for copy in range(9) for text in texts])
    path = tmp_path / "long.jsonl.gz"
    path.write_bytes(gzip.compress(rows, 1))
    (tmp_path / "long.jsonl").write_bytes(rows)
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
        write_texts(corpus / f"b{place}.jsonl", [text] * copies)
    options = {"vocab": str(vocab_file), "part_bytes": 2**12}
    plan = describe(BuildSettings(str(tmp_path / "out"), [str(corpus)], **options))
    made = 10 + 10 * copies
    assert number(plan, "about N documents") == pytest.approx(made, rel=0.1)
    assert number(plan, " N of text") == pytest.approx(10 * copies * 2 * 125, rel=0.1)
