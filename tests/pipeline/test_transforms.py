"""WriteTokens, finish_build and ReadInstances: a dataset from a PCollection is that from files."""

import base64
import bz2
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import schema_pb2
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.yaml.yaml_provider import InlineProvider

from pipeline.command_line.hints import hints_of
from pipeline.documents.parts import Part
from pipeline.jobs import broadcast
from pipeline.jobs.tokens_job import DocumentListCoder, EncodeDocuments, read_lists
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset
from pipeline.stages.build_tokens import tokens_rule
from pipeline.storage.folder import Folder
from pipeline.tokens.document_lists import DocumentList
from pipeline.transforms import (
    Document,
    ReadInstances,
    Source,
    WriteTokens,
    WriteToWebDataset,
    WrittenTokens,
    finish_build,
    instances,
    rows,
    tokens,
    webdataset,
)
from pipeline.transforms.gathered_documents import (
    add_sizes,
    add_tallies,
    is_long,
    is_short,
    join_lists,
    measure_list,
    size_of_list,
    tally_document,
    to_document,
    to_group,
    to_lists,
)
from pipeline.transforms.token_settings import WITHOUT_MEANING, TokenSettings
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
        written = pipeline | source | WriteTokens(output, vocab, **settings)
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


def test_no_documents_are_written_as_such_after_the_output_is_claimed(vocab_file, tmp_path):
    def check(written):
        numbers = written["written"] | beam.Map(lambda row: row[2:])
        assert_that(numbers, equal_to([(0, 0, 0, 0)]))

    write([], tmp_path, vocab_file, check=check, **SETTINGS)
    assert {"parts.json", "settings.json"} <= {path.name for path in tmp_path.glob("tokens/*")}


def test_another_pipeline_does_not_replace_what_the_first_has_written(texts, vocab_file, tmp_path):
    write(texts[:60], tmp_path, vocab_file, **SETTINGS)
    before = (tmp_path / "tokens/parts.json").read_bytes()
    said = (
        r"another pipeline has written 60 documents there, .* this one gave 60 others\. Write all"
    )
    for _ in range(2):
        with pytest.raises(Exception, match=said):
            write(texts[60:], tmp_path, vocab_file, **SETTINGS)
        assert (tmp_path / "tokens/parts.json").read_bytes() == before
    write(reversed(texts[:60]), tmp_path, vocab_file, **SETTINGS | {"part_bytes": 2048})
    dataset = finish_build(tmp_path, vocab_file, **SETTINGS)
    assert dataset.manifest.counters["documents_read"] == 60


@pytest.mark.parametrize("sources", [(), ("news", "books")])
def test_two_branches_to_one_output_are_refused_before_anything_is_written(
    sources, texts, vocab_file, tmp_path
):
    settings = SETTINGS | {"sources": [Source(name, []) for name in sources]}
    pipeline = beam.Pipeline()
    one = pipeline | "News" >> beam.Create([Document(text, source="news") for text in texts[:60]])
    two = pipeline | "Books" >> beam.Create([Document(text, source="books") for text in texts[60:]])
    _ = one | "One" >> WriteTokens(tmp_path / "data", vocab_file, **settings)
    said = (
        r"data(/tokens)?: two transforms of one pipeline write there, One and Two, .*beam\.Flatten"
    )
    with pytest.raises(ValueError, match=said):
        _ = two | "Two" >> WriteTokens(f"{tmp_path}/x/../data", vocab_file, **settings)
    assert not [*tmp_path.iterdir()], "nothing is written for a pipeline that never runs"


def test_joined_branches_of_two_sources_are_those_of_a_build_from_files(
    texts, mixture, vocab_file, tmp_path
):
    settings = SETTINGS | {"sources": [Source("news", [], 0.5), Source("books", [], 3, "de")]}
    with test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
        branches = [
            pipeline
            | f"Create {name}" >> beam.Create(chosen)
            | f"Name {name}" >> beam.Map(lambda text, name: Document(text, source=name), name)
            for name, chosen in (("news", texts[:70]), ("books", texts[60:]))
        ]
        _ = branches | beam.Flatten() | WriteTokens(tmp_path / "data", vocab_file, **settings)
    manifest = finish_build(tmp_path / "data", vocab_file, **settings).manifest
    assert manifest.root_hash == mixture.manifest.root_hash
    assert manifest.counters == mixture.manifest.counters


def test_a_build_from_files_and_a_pipeline_do_not_undo_each_other(
    corpus, texts, vocab_file, from_files, tmp_path
):
    said = "holds the documents of a build from files; give another output"
    with pytest.raises(ValueError, match=said):
        _ = beam.Pipeline() | beam.Create(texts) | WriteTokens(from_files.url, vocab_file)
    write(texts, tmp_path, vocab_file, **SETTINGS)
    before = read_tree(tmp_path / "tokens")
    words = ["--input", corpus, "--vocab", vocab_file, "--output", tmp_path, *FLAGS]
    assert run("build", *words) == 2
    assert read_tree(tmp_path / "tokens") == before


def read_tree(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
        (
            Document(b"a", "b"),
            "",
            r"a document's text is a bytes, expected str; found b'a', where is 'b'; convert",
        ),
    ],
)
def test_a_document_that_cannot_be_written_is_named(
    document, sources, message, vocab_file, tmp_path
):
    with pytest.raises(Exception, match=message):
        write([document], tmp_path, vocab_file, sources=[Source(name, []) for name in sources])
    assert not (tmp_path / "tokens/parts.json").exists()


@pytest.mark.parametrize(("value", "kind"), [(5, "int"), (None, "NoneType"), (b"x", "bytes")])
def test_what_is_no_document_is_named_where_no_type_is_known(value, kind):
    said = rf"a document is a {kind}, expected str or pipeline\.documents\.Document; found {value}"
    with pytest.raises(ValueError, match=said):
        to_document(value, ["input"])


def test_other_settings_are_refused(texts, vocab_file, tmp_path):
    write(texts[:60], tmp_path, vocab_file, **SETTINGS)
    with pytest.raises(ValueError, match="holds tokens of other settings: min_characters"):
        write(texts[:60], tmp_path, vocab_file, min_characters=9, **SETTINGS)


DOCUMENTS = [Document(f"Text {number}.", source="input") for number in range(40)]
LISTS = [DOCUMENTS[start : start + 10] for start in range(0, 40, 10)]


def _row(record, documents_read=10):
    return tokens.PartRow(
        record, documents_read, 9, 70, tokens._seal(record, documents_read, 9, 70)
    )


PART_LIES = {
    "a part is lost": lambda rows: rows[1:],
    "every part is lost": lambda _: [],
    "a part comes twice": lambda rows: [*rows, rows[0]],
    "a part of as many documents comes twice, another is lost": lambda rows: [
        rows[0],
        *rows[:-1],
    ],
    "a part has the name of nothing": lambda rows: [
        _row(f"{'0' * 32}-00000-last.json"),
        *rows[1:],
    ],
    "a part has no name": lambda rows: [_row(""), *rows[1:]],
}
ROW_LIES = {
    "another name": {"record": f"{'1' * 32}-00000-last.json"},
    "another number of documents": {"documents": 10},
    "another number of tokens": {"num_tokens": 71},
    "another seal": {"seal": "0" * 32},
}


@pytest.fixture
def written_parts(tmp_path):
    """A folder, the rows of four parts of ten documents in it, and the tally of the documents."""
    lists = [found for documents in LISTS for found in to_lists(documents, ["input"], 16)]
    rows = [_row(f"{found.part}-00000-last.json") for found in lists]
    folder = Folder(str(tmp_path))
    for row in rows:
        folder.write(row.record, b"{}")
    return folder, rows, add_tallies(map(tally_document, reversed(DOCUMENTS)))


@pytest.mark.parametrize("name", PART_LIES)
def test_what_a_runner_tells_of_parts_is_held_to_the_documents(name, written_parts):
    folder, rows, tally = written_parts
    with pytest.raises(ValueError, match=r"expected 40, .*; the runner loses, repeats or ch"):
        tokens.finish_tokens(PART_LIES[name](rows), tally, folder, "data")
    assert not folder.exists("parts.json")


@pytest.mark.parametrize("name", ROW_LIES)
def test_a_row_that_a_runner_changed_is_refused(name, written_parts):
    folder, rows, tally = written_parts
    changed = [rows[0]._replace(**ROW_LIES[name]), *rows[1:]]
    said = "as what was written of a token part, which is not what its seal says; the runner loses"
    with pytest.raises(ValueError, match=said):
        tokens.finish_tokens(changed, tally, folder, "data")
    assert not folder.exists("parts.json")


def test_a_part_that_a_store_does_not_list_is_refused(written_parts):
    folder, rows, tally = written_parts
    folder.remove([rows[2].record])
    with pytest.raises(ValueError, match=rf"{rows[2].record} is not there as it was written; run"):
        tokens.finish_tokens(rows, tally, folder, "data")
    assert not folder.exists("parts.json")


def test_all_parts_are_listed_and_counted_in_any_order(written_parts):
    folder, rows, tally = written_parts
    written = tokens.finish_tokens(rows[::-1], tally, folder, "data")
    assert written == WrittenTokens("data", folder.url, 4, 40, 36, 280)
    listed = json.loads(folder.read("parts.json"))
    assert listed["records"] == sorted(row.record for row in rows)
    assert listed["documents"] == 40


def test_a_list_is_named_by_its_documents_and_not_by_their_order():
    [one] = to_lists(DOCUMENTS, ["input"], 1024)
    [other] = to_lists(DOCUMENTS[::-1], ["input"], 1024)
    assert one == other
    names = {
        next(to_lists([document], ["input", "other"], 1024)).part
        for document in (
            Document("a", "b", source="input"),
            Document("ab", source="input"),
            Document("a", "b", source="other"),
            Document("a", "b", is_split=True, source="input"),
            Document("a", "\ud800", source="input"),
        )
    }
    assert len(names) == 5


def gather(bundles, part_bytes, sources=("input",)):
    """Returns the lists that documents in these bundles become, and those shuffled on the way."""
    lists = [found for bundle in bundles for found in to_lists(bundle, sources, part_bytes)]
    short = [found for found in lists if is_short(found, part_bytes)]
    sizes = add_sizes(map(measure_list, short))
    groups = {}
    for found in short:
        key, value = to_group(found, sizes, len(sources), part_bytes)
        groups.setdefault(key, []).append(value)
    joined = [found for group in groups.items() for found in join_lists(group, sources, part_bytes)]
    return [found for found in lists if is_long(found, part_bytes)] + joined, short


@pytest.mark.parametrize("size_of_bundle", [1, 7, 49, 50, 130, 200])
def test_parts_are_as_many_as_the_text_needs_and_not_as_the_bundles(size_of_bundle):
    documents = [Document(f"{number:099}", source="input") for number in range(4000)]  # of size 100
    part_bytes = 20_000
    starts = range(0, 4000, size_of_bundle)
    bundles = [documents[start : start + size_of_bundle] for start in starts]
    lists, short = gather(bundles, part_bytes)
    assert len(lists) <= 4 * 400_000 // part_bytes + 1
    assert max(map(size_of_list, lists)) <= part_bytes
    kept = sorted(document.text for found in lists for document in found.documents)
    assert kept == [document.text for document in documents]
    assert sum(map(size_of_list, short)) == (400_000 if size_of_bundle < 50 else 0)


def test_short_lists_of_a_group_become_the_list_of_all_their_documents():
    [whole] = to_lists(DOCUMENTS, ["input"], 1024)
    pieces = [piece for documents in LISTS for piece in to_lists(documents, ["input"], 1024)]
    assert len(pieces) == 4
    for order in (pieces, pieces[::-1]):
        assert list(join_lists((0, order), ["input"], 1024)) == [whole]


def test_short_lists_of_two_sources_are_not_joined():
    sources = ["news", "books"]
    bundles = [
        [Document(f"{name} {number}", source=name) for name in sources] for number in range(30)
    ]
    lists, short = gather(bundles, 2**20, sources)
    assert len(short) == 60
    assert [(found.source, len(found.documents)) for found in lists] == [(0, 30), (1, 30)]


def test_a_short_list_is_shuffled_in_pieces_that_every_engine_can_move():
    documents = [Document(f"{number:099}", source="input") for number in range(30_000)]
    lists = list(to_lists(documents, ["input"], 32 * 2**20))
    assert [size_of_list(found) for found in lists] == [1_048_600, 1_048_600, 902_800]


def test_bundles_of_one_document_give_few_parts_and_the_same_dataset(
    texts, vocab_file, from_files, tmp_path, monkeypatch
):
    whole = beam.BatchElements
    monkeypatch.setattr(beam, "BatchElements", lambda *_, **__: whole(1, 1))
    settings = SETTINGS | {"part_bytes": 16384}
    most_parts = 4 * 93_091 // 16384 + 1

    def check(written):
        found = written["written"] | beam.Map(lambda row: (row.parts <= most_parts, row[3:5]))
        assert_that(found, equal_to([(True, (120, 120))]))

    assert sum(1 + len(text) for text in texts) == 93_091
    write(texts, tmp_path, vocab_file, "--runtime_type_check", check=check, **settings)
    dataset = finish_build(tmp_path, vocab_file, **settings)
    assert dataset.manifest.root_hash == from_files.manifest.root_hash
    assert dataset.manifest.counters == from_files.manifest.counters


def test_a_runner_that_loses_a_part_ends_the_pipeline(texts, vocab_file, tmp_path, monkeypatch):
    finish = tokens.finish_tokens
    monkeypatch.setattr(tokens, "finish_tokens", lambda rows, *rest: finish(rows[1:], *rest))
    with pytest.raises(Exception, match=r"token parts of 0 documents were written, expected 60"):
        write(texts[60:], tmp_path, vocab_file, **SETTINGS)
    assert not (tmp_path / "tokens/parts.json").exists()


def test_a_damaged_list_of_parts_is_named(texts, vocab_file, tmp_path):
    write(texts[:60], tmp_path, vocab_file, **SETTINGS)
    for damage in (b"", b"[]", b'{"documents": 60}'):
        (tmp_path / "tokens/parts.json").write_bytes(damage)
        with pytest.raises(ValueError, match=r"tokens/parts\.json is damaged"):
            finish_build(tmp_path, vocab_file, **SETTINGS)


def test_large_task_texts_are_sent_when_the_pipeline_runs(texts, vocab_file, tmp_path, monkeypatch):
    monkeypatch.setattr(broadcast, "MAX_INLINE_BYTES", 10)
    (tmp_path / "task.txt").write_text(texts[0])
    settings = SETTINGS | {"task_files": [str(tmp_path / "task.txt")]}
    output = tmp_path / "data"
    _ = beam.Pipeline() | beam.Create(texts) | WriteTokens(output, vocab_file, **settings)
    assert not output.exists()
    write(texts, output, vocab_file, **settings)
    counters = finish_build(output, vocab_file, **settings).manifest.counters
    assert counters["dropped_task_text"] == 1


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
    for chosen, said in (
        ({"split": "test"}, "no test instances; the dataset has train L64"),
        ({"seq_len": 65}, "no instances of seq_len 65; the dataset has train L64"),
    ):
        with pytest.raises(ValueError, match=said):
            _ = beam.Pipeline() | ReadInstances(Path(from_files.url), **chosen)


def test_instances_are_of_the_dataset_that_was_there_when_the_pipeline_was_made(
    texts, vocab_file, from_files, tmp_path
):
    name = from_files.all_shards[0].name
    with pytest.raises(ValueError, match="another dataset is there than when the pipeline was"):
        next(instances.read_instances(name, from_files.folder, "0" * 64))
    write(texts[:60], tmp_path, vocab_file, **SETTINGS)
    counts = []
    for seed in (1, 2):
        dataset = finish_build(tmp_path, vocab_file, seed=seed, **SETTINGS)
        with test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
            found = pipeline | ReadInstances(tmp_path) | beam.combiners.Count.Globally()
            assert_that(found, equal_to([sum(g.instances for g in dataset.manifest.groups)]))
        counts.append(dataset.manifest.root_hash)
        for path in tmp_path.iterdir():
            if path.name not in ("tokens", "vocab.txt", "vocab.json", "tokenizer.json"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert len({*counts}) == 2


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


def read_graph(pipeline):
    """Returns all that a runner gets of a pipeline, with pickles unpacked to their bytes."""
    data = pipeline.to_runner_api().SerializeToString()
    pickles = re.findall(rb"QlpoO[A-Za-z0-9+/]+=*", data)  # of bz2 in base64, as Beam packs them
    return data + b"".join(bz2.decompress(base64.b64decode(packed)) for packed in pickles)


@pytest.fixture(params=["WriteTokens", "WriteToWebDataset", "ReadInstances"])
def apply(request, vocab_file, from_files, tmp_path):
    """A function that returns a pipeline with one transform, which takes some storage options."""
    transforms = {
        "WriteTokens": lambda options: (
            beam.Create(["a"]) | WriteTokens(tmp_path / "a", vocab_file, storage_options=options)
        ),
        "WriteToWebDataset": lambda options: (
            beam.Create([{}]) | WriteToWebDataset(tmp_path / "a", storage_options=options)
        ),
        "ReadInstances": lambda options: ReadInstances(from_files.url, storage_options=options),
    }

    def apply_transform(options):
        pipeline = beam.Pipeline(options=PipelineOptions(IN_MEMORY))
        _ = pipeline | transforms[request.param](options)
        return pipeline

    return apply_transform


def test_a_graph_holds_the_name_of_a_secret_and_not_the_secret(apply, monkeypatch):
    monkeypatch.setenv("STORE_SECRET", "s3cret-0816")
    named = read_graph(apply({"secret": "${STORE_SECRET}"}))
    assert b"s3cret-0816" not in named
    assert b"${STORE_SECRET}" in named
    assert b"s3cret-0816" in read_graph(apply({"secret": "s3cret-0816"})), "it would be found"


def test_a_worker_with_other_code_ends_every_transform_before_it_writes(
    apply, tmp_path, monkeypatch
):
    is_applied = []

    def hash_code():
        return "worker" if is_applied else "launcher"

    for module in (broadcast, webdataset):
        monkeypatch.setattr(module, "hash_code", hash_code)
    pipeline = apply(None)
    is_applied.append(True)
    with pytest.raises(Exception, match=r"a worker has other code of this package than the launch"):
        pipeline.run()
    assert not list(tmp_path.iterdir())


def test_documents_tokens_and_instances_are_counted(texts, vocab_file, from_files, tmp_path):
    pipeline = beam.Pipeline(options=PipelineOptions(IN_MEMORY))
    short = {"part_bytes": 2**20, "min_characters": 20}
    _ = pipeline | beam.Create([*texts[:9], "A."]) | WriteTokens(tmp_path, vocab_file, **short)
    _ = pipeline | ReadInstances(from_files.url, "train")
    shown = pipeline.run().metrics().query()
    counted = {each.key.metric.name: each.committed for each in shown["counters"]}
    [train] = [group for group in from_files.manifest.groups if group.split == "train"]
    expected = {
        "documents_read": 10,
        "documents": 9,
        "dropped_too_short": 1,
        "documents_joined": 10,
        "instances_read": train.instances,
        "tokens_read": train.tokens,
    }
    assert {name: counted.get(name) for name in expected} == expected
    observed = {each.key.metric.name: each.committed for each in shown["distributions"]}
    assert observed["tokens_a_document"].sum == counted["tokens"]
    assert observed["cleaned_bytes_a_document"].count == 9


def test_no_stage_of_the_tokens_job_pickles_a_list_to_measure_it(vocab_file, tmp_path):
    vocabulary = parse_vocab(vocab_file.read_bytes(), "vocab.txt")
    rule = tokens_rule(BuildSettings(output=str(tmp_path), near_duplicates=0.8), vocabulary)
    pipeline = beam.Pipeline(argv=["--runner=FnApiRunner"])
    lists = pipeline | beam.Create([Part(())]) | beam.FlatMap(read_lists, rule.reading)
    documents = pipeline | "Create documents" >> beam.Create([Document("text", source="input")])
    gathered = documents | tokens.GatherDocuments(["input"], 1024)
    for stage in (lists, lists | EncodeDocuments(rule), gathered):
        assert isinstance(beam.coders.registry.get_coder(stage.element_type), DocumentListCoder)
    documents, coder = DocumentList("part", 3, True, [Document("text")]), DocumentListCoder()
    assert coder.decode(coder.encode(documents)) == documents


class Note(NamedTuple):
    id: Any
    text: Any
    meta: Any = None


def test_rows_are_samples_as_they_are_and_rows_in_them_are_dicts():
    meta = beam.Row(lang="en", scores=[beam.Row(a=1), {"b": (beam.Row(c=None),)}])
    for row in (Note("a", b"x", meta), beam.Row(id="a", text=b"x", meta=meta)):
        plain = {"lang": "en", "scores": [{"a": 1}, {"b": ({"c": None},)}]}
        assert rows.to_sample(row, "id") == {"__key__": "a", "text": b"x", "meta": plain}
    assert rows.to_sample({"id": 7, "txt": None}, "id") == {"__key__": 7, "txt": None}
    with pytest.raises(ValueError, match="a row has no field 'key'; it has id, text, meta"):
        rows.to_sample(Note("a", "b"), "key")
    with pytest.raises(ValueError, match="found a str, expected a row of a table: 'ab'"):
        rows.to_sample("ab", "key")


@pytest.mark.parametrize(
    ("text", "kind"), [(b"w001.\n", "bytes"), (None, "NoneType"), (5, "int"), (["a"], "list")]
)
def test_the_text_of_a_row_is_no_other_than_the_rows(text, kind, vocab_file, tmp_path):
    said = rf"a document is a {kind}, expected str or pipeline\.documents\.Document; found"
    with pytest.raises(ValueError, match=said):
        to_document(rows.row_to_document(Note("a", text), "text", None, None), ["input"])
    with pytest.raises(ValueError, match=rf"a document's text is a {kind}, expected str; found"):
        to_document(rows.row_to_document(Note("a", text), "text", "id", None), ["input"])
    pipeline = test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY))
    source = pipeline | beam.Create([beam.Row(text="One."), beam.Row(text=text)])
    _ = source | rows.write_tokens(str(tmp_path), str(vocab_file), **SETTINGS)
    with pytest.raises(Exception, match=said):
        pipeline.run()
    assert not (tmp_path / "tokens/parts.json").exists()


def test_rows_name_places_and_sources(vocab_file, tmp_path):
    row = {"text": "Some text.", "file": "a.txt:3", "kind": "news"}
    found = rows.row_to_document(row, "text", "file", "kind")
    assert found == Document("Some text.", "a.txt:3", source="news")
    sources = [{"name": "news", "weight": 0.5}, {"name": "books", "language": "de"}]
    made = [Source("news", [], 0.5), Source("books", [], language="de")]
    assert list(map(rows.make_source, sources)) == made
    for odd in ({"name": "news", "wieght": 2}, {"name": "news", "input": ["a"]}):
        with pytest.raises(
            ValueError, match=r"expected no field '(wieght|input)'; a source has name"
        ):
            rows.make_source(odd)
    with pytest.raises(ValueError, match=r"sources: found \{\}, expected to have a name"):
        rows.make_source({})


def test_the_example_of_beam_yaml_writes_shards_and_tokens(texts, vocab_file, from_files, tmp_path):
    path, output = tmp_path / "texts.parquet", tmp_path / "data"
    ids = [f"text-{number}" for number in range(121)]
    pq.write_table(pa.table({"id": ids, "text": [*texts, "\n"]}), path)
    places = {"input": str(path), "vocab": str(vocab_file), "output": str(output)}
    given = (f"--jinja_variables={json.dumps(places)}", "--yaml_pipeline_file=example.yaml")
    ran = run_python("-m", "apache_beam.yaml.main", *given, *IN_MEMORY, cwd=ROOT / "configs/beam")
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert json.loads((output / "samples/manifest.json").read_text())["samples"] == 121
    [rejected] = tmp_path.glob("data-rejected/documents*")
    assert json.loads(rejected.read_text()) == {"reason": "empty", "where": "", "text": "\n"}
    dataset = finish_build(str(output), str(vocab_file), **SETTINGS)
    assert dataset.manifest.root_hash == from_files.manifest.root_hash


def test_the_examples_of_the_page_run(texts, vocab_file, tmp_path, monkeypatch):
    page = (ROOT / "docs/library.md").read_text()
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "news.jsonl", texts[:70])
    write_texts(tmp_path / "books.jsonl", texts[70:])
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


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"passes": "many"}, "passes: found 'many', expected a whole number"),
        ({"passes": 2.5}, "passes: found '2.5', expected a whole number"),
        ({"seq_lens": 64}, "seq_lens: found '64', expected a list, such as [a, b]"),
        ({"lower_case": 1}, "lower_case: found '1', expected true or false"),
        ({"pases": 2}, "unknown key pases; did you mean passes?"),
        (
            {"input": ["a.txt"]},
            "input is no setting of it: the documents are those of a PCollection",
        ),
        (
            {"sources": [{"name": "a"}]},
            "sources: found {'name': 'a'}, expected pipeline.documents.source.Source(name=...,"
            " input=[])",
        ),
    ],
)
def test_a_setting_of_another_type_is_refused_in_one_line(vocab_file, tmp_path, settings, said):
    with pytest.raises(ValueError, match=f"^{re.escape(f'WriteTokens: {said}')}$"):
        WriteTokens(tmp_path, vocab_file, **settings)
    assert [*tmp_path.iterdir()] == []


OTHER_TYPES = {
    "sources": Sequence[Source],
    "languages": Sequence[str],
    "filter": Sequence[str],
    "exclude_documents_of": Sequence[str | os.PathLike[str]],
    "task_files": Sequence[str | os.PathLike[str]],
    "seq_lens": Sequence[int],
    "tokens": str | os.PathLike[str] | None,
    "storage_options": Mapping[str, Any] | str | None,
}


def test_types_of_settings_are_those_of_a_build():
    hints = hints_of(BuildSettings)
    expected = {name: hints[name] for name in hints if name not in {"output", "vocab"}}
    for name in WITHOUT_MEANING:
        del expected[name]
    assert get_type_hints(TokenSettings) == expected | OTHER_TYPES


def test_settings_are_listed_for_help_and_for_beam_yaml():
    listed = inspect.signature(WriteTokens).parameters
    assert {"output", "vocab", *TokenSettings.__annotations__} == listed.keys()
    assert listed["part_bytes"].default == 32 * 2**20
    schema = InlineProvider.config_schema_from_callable(rows.write_tokens)
    names = {field.name: field for field in schema.fields}
    of_rows = {"output", "vocab", "text", "where", "source"}
    assert {*of_rows, *TokenSettings.__annotations__} == names.keys()
    assert names["passes"].type.atomic_type == schema_pb2.INT64
    assert names["text"].description == "The field that holds the text of a document."


def test_settings_are_read_as_a_file_of_settings_is(vocab_file, tmp_path):
    given = WriteTokens(
        tmp_path, vocab_file, passes="2", seq_lens=(64,), storage_options={"anon": True}
    )._settings
    assert (given.passes, given.seq_lens) == (2, [64])
    assert given.filesystem_options() == {"anon": True}
