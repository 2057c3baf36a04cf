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

from pipeline.documents.parts import Part
from pipeline.jobs.tokens_job import DocumentListCoder, EncodeDocuments, read_lists
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset
from pipeline.stages.build_tokens import tokens_rule
from pipeline.tokens.document_lists import DocumentList
from pipeline.transforms import Document, ReadInstances, Source, WriteTokens, finish_build, tokens
from pipeline.transforms.tokens import to_document
from scripts.checkout import ROOT
from tests.pipeline.programs import run, write_texts
from tokenizer.vocab import parse_vocab

pytestmark = pytest.mark.processes
SETTINGS = {"seq_lens": [64], "passes": 2, "num_buckets": 4, "workers": 1}
FLAGS = ["--seq_lens", "64", "--passes", "2", "--num_buckets", "4", "--workers", "1"]
IN_MEMORY = ["--runner=FnApiRunner", "--direct_num_workers=1", "--direct_running_mode=in_memory"]


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
    assert run("build", *words, "--", *IN_MEMORY, "--runtime_type_check") == 0
    return open_dataset(str(output))


def test_documents_come_from_any_source_and_the_command_finishes_the_build(
    texts, vocab_file, from_files, tmp_path
):
    (tmp_path / "a.txt").write_text("\n".join(map(json.dumps, texts)))
    with test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
        lines = pipeline | beam.io.ReadFromText(str(tmp_path / "a.txt"))
        settings = SETTINGS | {"part_bytes": 8192}
        written = WriteTokens(str(tmp_path / "data"), str(vocab_file), **settings)
        _ = lines | beam.Map(json.loads) | written
    assert run("shards", "--output", tmp_path / "data", "--vocab", vocab_file, *FLAGS) == 0
    manifest = open_dataset(str(tmp_path / "data")).manifest
    assert manifest.root_hash == from_files.manifest.root_hash
    assert manifest.counters == from_files.manifest.counters


def test_types_hold_when_they_are_checked_and_copies_change_nothing(
    texts, vocab_file, from_files, tmp_path
):
    write([*texts, *texts[:40]], tmp_path / "data", vocab_file, "--runtime_type_check", **SETTINGS)
    checked = {"beam_arguments": [*IN_MEMORY, "--runtime_type_check"], "exchange": "shuffle"}
    dataset = finish_build(str(tmp_path / "data"), str(vocab_file), **checked, **SETTINGS)
    assert dataset.manifest.root_hash == from_files.manifest.root_hash
    assert dataset.manifest.counters["dropped_duplicate"] == 40


def test_a_copy_of_a_list_of_documents_changes_nothing(texts, vocab_file, tmp_path):
    """As a list ends with its bundle, and such lists have one name and one part."""
    documents, settings = (
        [" ".join(texts[n : n + 5]) for n in range(40)],
        SETTINGS | {"part_bytes": 1024},
    )
    roots = []
    for copies in (0, 5):
        output = tmp_path / f"{copies}"
        write([*documents, *documents[:copies]], output, vocab_file, **settings)
        roots.append(finish_build(str(output), str(vocab_file), **settings).manifest.root_hash)
    assert roots[0] == roots[1]


def test_sources_of_ones_own_are_those_of_a_build_from_files(
    texts, mixture, mixture_config, vocab_file, tmp_path
):
    sources = [Source("news", [], 0.5), Source("books", [], 3, "de")]
    settings = SETTINGS | {"sources": sources}
    documents = [Document(text, f"news {n}", source="news") for n, text in enumerate(texts[:70])]
    documents += [Document(text, f"book {n}", source="books") for n, text in enumerate(texts[60:])]
    write(documents, tmp_path / "data", vocab_file, **settings)
    manifest = finish_build(str(tmp_path / "data"), str(vocab_file), **settings).manifest
    assert manifest.root_hash == mixture.manifest.root_hash
    assert [each["name"] for each in manifest.sources] == ["news", "books"]


def test_rejected_documents_are_the_second_output_with_their_reasons(texts, vocab_file, tmp_path):
    documents = [*texts[:60], " \n ", Document("Too short.", "a note")]

    def check(written):
        rows = written["rejected"] | beam.Map(lambda each: (each.reason, each.where, each.text))
        assert_that(rows, equal_to([("empty", "", " \n "), ("too_short", "a note", "Too short.")]))

    kept = {"min_characters": 50, "on_bad_document": "keep"}
    write(documents, tmp_path, vocab_file, check=check, **kept, **SETTINGS)
    assert {row["where"] for row in read_rejected(tmp_path)} == {"", "a note"}


def read_rejected(output):
    lines = "".join(path.read_text() for path in (output / "rejected").iterdir())
    return list(map(json.loads, lines.splitlines()))


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
    ("document", "sources", "message"),
    [
        (5, "", "Input type hint violation at WriteTokens: expected Union.*, got <class 'int'>"),
        (
            Document("a", "b", source="c"),
            "xy",
            r"\('b'\) is of the source 'c', expected one of x, y",
        ),
        ("a", "xy", r"a document \('a'\) is of the source ''"),
    ],
)
def test_a_document_that_cannot_be_written_is_named(
    document, sources, message, vocab_file, tmp_path
):
    with pytest.raises(Exception, match=message):
        write([document], tmp_path, vocab_file, sources=[Source(name, []) for name in sources])
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
        masks = found | beam.FlatMap(
            lambda each: zip(each["masked_lm_positions"], each["masked_lm_ids"], strict=True)
        )
        masked = masks | "Masked" >> beam.combiners.Count.Globally()
        [group] = [each for each in from_files.manifest.groups if each.split == "train"]
        assert_that(found | beam.combiners.Count.Globally(), equal_to([group.instances]), "number")
        assert_that(tokens, equal_to([group.tokens]), "tokens")
        assert_that(masked, equal_to([group.masked]), "masked")


def test_instances_of_no_such_split_are_refused(from_files):
    said = "no test instances of seq_len 0; the dataset has train L64"
    with pytest.raises(ValueError, match=said):
        _ = beam.Pipeline() | ReadInstances(from_files.url, split="test")


def test_kept_documents_lie_with_their_reasons_beside_the_dataset(texts, vocab_file, tmp_path):
    path = tmp_path / "a.jsonl"
    write_texts(path, texts)
    with path.open("a") as file:
        file.write('{"text": "cut\n{"text": "Too short."}\n{"text": ""}\n')
    words = ["--input", path, "--vocab", vocab_file, "--min_characters", 50, *FLAGS]
    for policy in ("keep", "skip"):
        flags = ("--output", tmp_path / policy, "--on_bad_document", policy)
        assert run("build", *words, *flags) == 0
    rows = read_rejected(tmp_path / "keep")
    found = sorted((row["reason"], row["text"], row["where"].partition(": ")[0]) for row in rows)
    assert found == [
        ("empty", "", f"{path}:123"),
        ("not_json", '{"text": "cut', f"{path}:121"),
        ("too_short", "Too short.", f"{path}:122"),
    ]
    kept, skipped = (open_dataset(str(tmp_path / name)).manifest for name in ("keep", "skip"))
    assert kept == skipped


def test_no_stage_of_the_tokens_job_pickles_a_list_to_measure_it(vocab_file, tmp_path):
    vocabulary = parse_vocab(vocab_file.read_bytes(), "vocab.txt")
    rule = tokens_rule(BuildSettings(output=str(tmp_path), near_duplicates=0.8), vocabulary)
    pipeline = beam.Pipeline(argv=["--runner=FnApiRunner"])
    lists = pipeline | beam.Create([Part(())]) | beam.FlatMap(read_lists, rule.reading)
    for stage in (lists, lists | EncodeDocuments(rule)):
        assert isinstance(beam.coders.registry.get_coder(stage.element_type), DocumentListCoder)
    documents, coder = DocumentList("part", 3, True, [Document("text")]), DocumentListCoder()
    assert coder.decode(coder.encode(documents)) == documents


def test_the_example_of_beam_yaml_writes_shards_and_tokens(texts, vocab_file, from_files, tmp_path):
    path, output = tmp_path / "texts.parquet", tmp_path / "data"
    ids = [f"text-{number}" for number in range(120)]
    pq.write_table(pa.table({"id": ids, "text": texts}), path)
    places = {"input": str(path), "vocab": str(vocab_file), "output": str(output)}
    given = (f"--jinja_variables={json.dumps(places)}", "--yaml_pipeline_file=example.yaml")
    ran = run_python("-m", "apache_beam.yaml.main", *given, *IN_MEMORY, cwd=ROOT / "configs/beam")
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert json.loads((output / "samples/manifest.json").read_text())["samples"] == 120
    dataset = finish_build(str(output), str(vocab_file), **SETTINGS)
    assert dataset.manifest.root_hash == from_files.manifest.root_hash


def test_the_examples_of_the_page_run(texts, vocab_file, tmp_path, monkeypatch):
    page = (ROOT / "docs/library.md").read_text()
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts.jsonl", texts)
    (tmp_path / "vocab.txt").write_bytes(vocab_file.read_bytes())
    for name in ("samples", "documents"):
        [code] = re.findall(rf"```python\n(# {name}\.py\n.*?)```", page, re.DOTALL)
        ran = run_python("-c", code)
        assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads((tmp_path / "samples/manifest.json").read_text())["samples"] == 100
    assert len(open_dataset("my-data").all_shards) >= 3


KILLED = """
import os, sys
import apache_beam as beam
from pipeline.storage.folder import Folder
from pipeline.transforms import WriteTokens, WriteToWebDataset
elements, transform, name, *words = sys.argv[1:]
write = Folder.write
def write_or_die(own, file, data):
    if file.endswith(name):
        os.kill(os.getpid(), 9)
    write(own, file, data)
Folder.write = write_or_die
with beam.Pipeline(argv=words) as pipeline:
    pipeline | beam.Create(eval(elements)) | eval(transform)
"""


def run_killed(elements, transform, name):
    """Runs a pipeline in a process that is killed where it would write a file of this name."""
    ran = run_python("-c", KILLED, repr(elements), transform, name, *IN_MEMORY)
    assert ran.returncode == -9, ran.stderr[-3000:]


def test_a_killed_pipeline_leaves_no_tokens_and_the_same_one_writes_them(
    texts, vocab_file, from_files, tmp_path
):
    run_killed(texts, f"WriteTokens('{tmp_path}', '{vocab_file}', **{SETTINGS})", "parts.json")
    with pytest.raises(FileNotFoundError):
        finish_build(str(tmp_path), str(vocab_file), **SETTINGS)
    write(texts, tmp_path, vocab_file, **SETTINGS)
    dataset = finish_build(str(tmp_path), str(vocab_file), **SETTINGS)
    assert dataset.manifest.root_hash == from_files.manifest.root_hash
