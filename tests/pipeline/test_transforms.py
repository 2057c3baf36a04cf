"""WriteTokens, finish_build and ReadInstances: a dataset from a PCollection is that from files."""

import json
import os
import re
import subprocess
import sys

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that, equal_to

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.documents.parts import Part
from pipeline.jobs.tokens_job import DocumentListCoder, EncodeDocuments, read_lists
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset
from pipeline.stages.build_tokens import tokens_rule
from pipeline.tokens.document_lists import DocumentList
from pipeline.transforms import Document, ReadInstances, Source, WriteTokens, finish_build, tokens
from pipeline.transforms.tokens import to_document
from scripts.checkout import ROOT
from tokenizer.vocab import parse_vocab

pytestmark = pytest.mark.processes
SETTINGS = {"seq_lens": [64], "passes": 2, "num_buckets": 4, "workers": 1}
FLAGS = ["--seq_lens", "64", "--passes", "2", "--num_buckets", "4", "--workers", "1"]
IN_MEMORY = ["--runner=FnApiRunner", "--direct_num_workers=1", "--direct_running_mode=in_memory"]


def run(command, *words):
    words = [str(word) for word in (command, *words)]
    assert run_program("python -m pipeline", "Tests.", COMMANDS, words) == 0


def run_python(*words, cwd=None):
    command = [sys.executable, *map(str, words)]
    own = {"env": os.environ | {"PYTHONPATH": str(ROOT)}, "cwd": cwd}
    return subprocess.run(command, capture_output=True, text=True, check=False, **own)


def write(documents, output, vocab, *flags, check=None, **settings):
    with test_pipeline.TestPipeline(options=PipelineOptions([*IN_MEMORY, *flags])) as pipeline:
        source = documents if isinstance(documents, beam.PTransform) else beam.Create(documents)
        written = pipeline | source | WriteTokens(str(output), str(vocab), **settings)
        if check:
            check(written)


@pytest.fixture(scope="module")
def from_files(corpus, vocab_file, tmp_path_factory):
    output = tmp_path_factory.mktemp("files") / "data"
    words = ["--input", corpus, "--vocab", vocab_file, "--output", output, *FLAGS]
    run("build", *words, "--", *IN_MEMORY, "--runtime_type_check")
    return open_dataset(str(output))


@pytest.fixture(scope="module")
def from_texts(texts, vocab_file, tmp_path_factory):
    output = tmp_path_factory.mktemp("texts") / "data"
    write(texts, output, vocab_file, part_bytes=8192, **SETTINGS)
    return finish_build(str(output), str(vocab_file), part_bytes=8192, **SETTINGS)


def test_the_root_hash_is_that_of_a_build_from_files(from_files, from_texts):
    assert from_texts.manifest.root_hash == from_files.manifest.root_hash
    counters = from_texts.manifest.counters
    assert counters == from_files.manifest.counters
    assert counters["documents"] == 120


@pytest.mark.parametrize("kind", ["text", "parquet"])
def test_documents_come_from_any_source_and_the_command_finishes_the_build(
    kind, texts, vocab_file, from_files, tmp_path
):
    lines = [json.dumps(text) for text in texts]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    source, to_text = {
        "text": (beam.io.ReadFromText(str(tmp_path / "a.txt")), json.loads),
        "parquet": (beam.io.ReadFromParquet(str(tmp_path / "a.parquet")), lambda row: row["text"]),
    }[kind]
    with test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
        documents = pipeline | source | beam.Map(to_text)
        _ = documents | WriteTokens(str(tmp_path / "data"), str(vocab_file), **SETTINGS)
    run("shards", "--output", tmp_path / "data", "--vocab", vocab_file, *FLAGS)
    assert open_dataset(str(tmp_path / "data")).manifest.root_hash == from_files.manifest.root_hash


def test_types_hold_when_they_are_checked_and_copies_change_nothing(
    texts, vocab_file, from_files, tmp_path
):
    write([*texts, *texts[:40]], tmp_path / "data", vocab_file, "--runtime_type_check", **SETTINGS)
    checked = {"beam_arguments": [*IN_MEMORY, "--runtime_type_check"], "exchange": "shuffle"}
    dataset = finish_build(str(tmp_path / "data"), str(vocab_file), **checked, **SETTINGS)
    assert dataset.manifest.root_hash == from_files.manifest.root_hash
    assert dataset.manifest.counters["dropped_duplicate"] == 40


def test_sources_of_ones_own_are_those_of_a_build_from_files(
    texts, mixture, mixture_config, vocab_file, tmp_path
):
    sources = [Source("news", [], 0.5), Source("books", [], 3, "de")]
    settings = SETTINGS | {"sources": sources}
    documents = [Document(text, f"news {n}", source="news") for n, text in enumerate(texts[:70])]
    documents += [Document(text, f"book {n}", source="books") for n, text in enumerate(texts[60:])]
    write(documents, tmp_path / "data", vocab_file, **settings)
    dataset = finish_build(str(tmp_path / "data"), str(vocab_file), **settings)
    assert dataset.manifest.root_hash == mixture.manifest.root_hash
    assert [each["name"] for each in dataset.manifest.sources] == ["news", "books"]


def test_rejected_documents_are_the_second_output_with_their_reasons(texts, vocab_file, tmp_path):
    documents = [*texts[:60], " \n ", Document("Too short.", "a note")]

    def check(written):
        rows = written["rejected"] | beam.Map(lambda each: (each.reason, each.where, each.text))
        assert_that(rows, equal_to([("empty", "", " \n "), ("too_short", "a note", "Too short.")]))

    kept = {"min_characters": 50, "on_bad_document": "keep"}
    write(documents, tmp_path, vocab_file, check=check, **kept, **SETTINGS)
    lines = [path.read_text().splitlines() for path in (tmp_path / "rejected").iterdir()]
    assert {json.loads(line)["where"] for own in lines for line in own} == {"", "a note"}


def test_the_same_command_again_changes_nothing_and_other_documents_replace_the_first(
    texts, vocab_file, tmp_path
):
    write(texts[:60], tmp_path, vocab_file, **SETTINGS)
    first = finish_build(str(tmp_path), str(vocab_file), **SETTINGS).manifest
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tar")}
    write(texts[:60], tmp_path, vocab_file, **SETTINGS)
    assert finish_build(str(tmp_path), str(vocab_file), **SETTINGS).manifest == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tar")} == before
    write(texts, tmp_path, vocab_file, **SETTINGS)
    with pytest.raises(ValueError, match=r"holds shards of other settings: .*documents"):
        finish_build(str(tmp_path), str(vocab_file), **SETTINGS)


@pytest.mark.parametrize(
    ("documents", "settings", "message"),
    [
        ([5], {}, "Input type hint violation at WriteTokens: expected Union.*, got <class 'int'>"),
        (
            [Document("a", "b", source="c")],
            {"sources": [Source("x", []), Source("y", [])]},
            r"a document \('b'\) is of the source 'c', expected one of x, y",
        ),
        (["a"], {"sources": [Source("x", []), Source("y", [])]}, r"\('a'\) is of the source ''"),
    ],
)
def test_a_document_that_cannot_be_written_is_named(
    documents, settings, message, vocab_file, tmp_path
):
    with pytest.raises(Exception, match=message):
        write(documents, tmp_path, vocab_file, **settings)
    assert not (tmp_path / "tokens/parts.json").exists()


def test_what_is_no_document_is_named_where_no_type_is_known():
    with pytest.raises(ValueError, match=r"a document is a int, expected str or pipeline\.doc"):
        to_document(5)


def test_other_settings_or_a_lost_part_are_refused(texts, vocab_file, tmp_path, monkeypatch):
    write(texts[:60], tmp_path, vocab_file, **SETTINGS)
    with pytest.raises(ValueError, match="holds tokens of other settings: min_characters"):
        write(texts[:60], tmp_path, vocab_file, min_characters=9, **SETTINGS)
    finish = tokens.finish_tokens
    monkeypatch.setattr(tokens, "finish_tokens", lambda rows, *rest: finish(rows[1:], *rest))
    with pytest.raises(Exception, match=r"token parts of 0 documents were written, expected 60"):
        write(texts[60:], tmp_path, vocab_file, **SETTINGS)


def test_instances_are_those_of_the_dataset(from_files):
    with test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
        found = pipeline | ReadInstances(from_files.url, split="train", seq_len=64)
        tokens = found | beam.Map(lambda each: len(each["input_ids"])) | beam.CombineGlobally(sum)
        masked = found | beam.FlatMap(
            lambda each: zip(each["masked_lm_positions"], each["masked_lm_ids"], strict=True)
        )
        [group] = [each for each in from_files.manifest.groups if each.split == "train"]
        assert_that(found | beam.combiners.Count.Globally(), equal_to([group.instances]), "number")
        assert_that(tokens, equal_to([group.tokens]), "tokens")
        assert_that(
            masked | "Masked" >> beam.combiners.Count.Globally(), equal_to([group.masked]), "masked"
        )


def test_instances_of_no_such_split_are_refused(from_files):
    with pytest.raises(
        ValueError, match="no test instances of seq_len 0; the dataset has train L64"
    ):
        _ = beam.Pipeline() | ReadInstances(from_files.url, split="test")


def test_kept_documents_lie_with_their_reasons_beside_the_dataset(texts, vocab_file, tmp_path):
    lines = [json.dumps({"text": text}) for text in texts]
    lines += ['{"text": "cut', json.dumps({"text": "Too short."}), json.dumps({"text": ""})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    words = ["--input", tmp_path / "a.jsonl", "--vocab", vocab_file, "--min_characters", 50, *FLAGS]
    run("build", *words, "--output", tmp_path / "data", "--on_bad_document", "keep")
    rows = [
        json.loads(line)
        for path in (tmp_path / "data/rejected").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert sorted((row["reason"], row["text"]) for row in rows) == [
        ("empty", ""), ("not_json", '{"text": "cut'), ("too_short", "Too short."),
    ]  # fmt: skip
    assert all(f"a.jsonl:{number}" in row["where"] for row, number in zip(
        sorted(rows, key=lambda row: row["reason"]), (123, 121, 122), strict=True
    ))  # fmt: skip
    run("build", *words, "--output", tmp_path / "skip", "--on_bad_document", "skip")
    kept, skipped = (open_dataset(str(tmp_path / name)).manifest for name in ("data", "skip"))
    assert kept == skipped


def test_no_stage_of_the_tokens_job_pickles_a_list_to_measure_it(vocab_file, tmp_path):
    settings = BuildSettings(output=str(tmp_path), near_duplicates=0.8)
    vocabulary = parse_vocab(vocab_file.read_bytes(), "vocab.txt")
    rule = tokens_rule(settings, vocabulary)
    pipeline = beam.Pipeline(argv=["--runner=FnApiRunner"])
    lists = pipeline | beam.Create([Part(())]) | beam.FlatMap(read_lists, rule.reading)
    for stage in (lists, lists | EncodeDocuments(rule)):
        assert isinstance(beam.coders.registry.get_coder(stage.element_type), DocumentListCoder)
    documents, coder = DocumentList("part", 3, True, [Document("text")]), DocumentListCoder()
    assert coder.decode(coder.encode(documents)) == documents


def test_the_example_of_beam_yaml_writes_shards_and_tokens(texts, vocab_file, from_files, tmp_path):
    table = pa.table({"id": [f"text-{number}" for number in range(len(texts))], "text": texts})
    pq.write_table(table, tmp_path / "texts.parquet")
    output = tmp_path / "data"
    places = {"input": f"{tmp_path}/texts.parquet", "vocab": str(vocab_file), "output": str(output)}
    given = (f"--jinja_variables={json.dumps(places)}", "--yaml_pipeline_file=example.yaml")
    ran = run_python("-m", "apache_beam.yaml.main", *given, *IN_MEMORY, cwd=ROOT / "configs/beam")
    assert ran.returncode == 0, ran.stderr[-4000:]
    manifest = json.loads((output / "samples/manifest.json").read_text())
    assert manifest["samples"] == 120
    dataset = finish_build(str(output), str(vocab_file), **SETTINGS)
    assert dataset.manifest.root_hash == from_files.manifest.root_hash


def test_the_examples_of_the_page_run(texts, vocab_file, tmp_path, monkeypatch):
    page = (ROOT / "docs/library.md").read_text()
    monkeypatch.chdir(tmp_path)
    lines = "".join(json.dumps({"text": each}) + "\n" for each in texts)
    (tmp_path / "texts.jsonl").write_text(lines)
    (tmp_path / "vocab.txt").write_bytes(vocab_file.read_bytes())
    for name in ("samples", "documents"):
        [code] = re.findall(rf"```python\n(# {name}\.py\n.*?)```", page, re.DOTALL)
        ran = run_python("-c", code)
        assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads((tmp_path / "samples/manifest.json").read_text())["samples"] == 100
    assert len(open_dataset("my-data").all_shards) >= 3


KILLED = """
import json, os, sys
import apache_beam as beam
from pipeline.storage.folder import Folder
from pipeline.transforms import WriteTokens
texts, vocab, output, name, *words = sys.argv[1:]
write = Folder.write
def write_or_die(own, file, data):
    if file.endswith(name):
        os.kill(os.getpid(), 9)
    write(own, file, data)
Folder.write = write_or_die
settings = {"seq_lens": [64], "passes": 2, "num_buckets": 4, "workers": 1}
with beam.Pipeline(argv=words) as pipeline:
    pipeline | beam.Create(json.loads(texts)) | WriteTokens(output, vocab, **settings)
"""


@pytest.mark.parametrize("name", ["-last.json", "parts.json"])
def test_a_killed_pipeline_leaves_no_tokens_and_the_same_one_writes_them(
    name, texts, vocab_file, from_files, tmp_path
):
    ran = run_python("-c", KILLED, json.dumps(texts), vocab_file, tmp_path, name, *IN_MEMORY)
    assert ran.returncode == -9, ran.stderr[-3000:]
    with pytest.raises(FileNotFoundError):
        finish_build(str(tmp_path), str(vocab_file), **SETTINGS)
    write(texts, tmp_path, vocab_file, **SETTINGS)
    dataset = finish_build(str(tmp_path), str(vocab_file), **SETTINGS)
    assert dataset.manifest.root_hash == from_files.manifest.root_hash
