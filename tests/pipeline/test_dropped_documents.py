"""Builds that leave out near-duplicates and documents of other datasets, cut and killed anyhow."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.jobs import near_duplicates_job
from pipeline.jobs.broadcast import broadcast
from pipeline.jobs.exchange import GroupedDocuments, cut_part
from pipeline.shards import verify
from pipeline.shards.dataset import open_dataset
from pipeline.shards.verify import verify_dataset
from pipeline.storage.folder import Folder
from pipeline.text.cleaning import clean_text, document_id
from pipeline.tokens import dropped_ids
from pipeline.tokens.buckets import Bucket
from pipeline.tokens.dropped_ids import DROPPED, choose_dropped, read_dropped_ids
from pipeline.tokens.grouped_rows import NUM_GROUPS, pack_rows, read_groups, write_groups
from pipeline.tokens.near_duplicates import similarity_rule
from pipeline.tokens.token_index import (
    TokenParts,
    build_index,
    iterate_index,
    open_index,
    read_bucket,
)
from pipeline.tokens.token_parts import TokenizedDocument, pack_documents
from tests.pipeline.programs import root_hash, run, write_texts
from tests.pipeline.similar_texts import make_text, oracle

FLAGS = ("--passes", 1, "--seq_lens", 64, "--workers", 1, "--max_unknown", 1)
NEAR = ("--near_duplicates", 0.8)


def test_groups_of_rows_are_read_back(tmp_path):
    folder = Folder(str(tmp_path))
    dtype = np.dtype([("high", "<u8")])
    rows = np.zeros(700, dtype)
    rows["high"] = np.sort(np.random.default_rng(1).integers(0, 1 << 64, 700, np.uint64))
    groups = rows["high"] >> np.uint64(56)
    (tmp_path / "packed").write_bytes(pack_rows(rows, groups))
    write_groups(folder, "streamed", (rows[groups == group] for group in range(NUM_GROUPS)))
    assert (tmp_path / "packed").read_bytes() == (tmp_path / "streamed").read_bytes()
    found = read_groups(folder, "packed", dtype, 3, 40)
    assert np.array_equal(found, rows[(groups >= 3) & (groups <= 40)])


def make_document(number):
    lengths = np.array([2, 1], np.uint16)
    tokens = np.full(3, number, np.uint16)
    return TokenizedDocument((number * 2**120 + number).to_bytes(16, "big"), 10, lengths, tokens)


@pytest.fixture
def part_folder(tmp_path):
    """Two parts of documents 0 to 255, those of 100 to 119 in both; 7, 9 and 110 are dropped."""
    folder = Folder(str(tmp_path))
    parts = {"one": range(120), "two": range(100, 256)}
    for name, numbers in parts.items():
        tokens, index = pack_documents(list(map(make_document, numbers)))
        folder.write(f"{name}.tokens", tokens)
        folder.write(f"{name}.index", index)

    def keys(*numbers):
        return np.array([make_document(number).id for number in numbers], "S16")

    reasons = {"excluded": keys(7, 110), "near_duplicate": keys(7, 9, 44)}
    with open_index(folder, list(parts)) as index:
        dropped = (choose_dropped(rows, reasons) for rows in iterate_index(index))
        write_groups(folder, DROPPED, dropped)
    return TokenParts(folder, "uint16", has_dropped=True), list(parts)


def test_dropped_documents_are_no_part_of_totals_buckets_and_shuffle(part_folder):
    tokens, names = part_folder
    ids = [make_document(number).id for number in range(256)]
    dropped = {ids[number] for number in (7, 9, 44, 110)}
    assert read_dropped_ids(tokens.folder, ids[0], ids[255]) == dropped
    assert read_dropped_ids(tokens.folder, ids[8], ids[44]) == {ids[9], ids[44]}
    with open_index(tokens.folder, names) as index:
        totals = build_index(index, 1, ("excluded", "near_duplicate"))
    assert totals.dropped == {"excluded": 2, "near_duplicate": 2}
    assert (totals.documents, totals.duplicates, totals.tokens) == (252, 20, 252 * 3)
    assert not dropped & {bytes.fromhex(each) for each in totals.sources[0].lowest_ids}
    bucket = Bucket("train", 0, 1, ids[0], ids[255])
    expected = [each for each in ids if each not in dropped]
    assert sorted({each.id for each in read_bucket(tokens, names, bucket)}) == expected
    chunks = [chunk for name in names for _, chunk in cut_part(name, tokens, [bucket])]
    cut = [document.id for document in GroupedDocuments(bucket, chunks, tokens)]
    assert sorted(set(cut)) == expected
    assert len(cut) == 276 - 4 - 1  # 110 was in both


def test_reasons_are_found_again(part_folder):
    tokens, names = part_folder
    dropped = dropped_ids.iterate_dropped(tokens.folder, has_dropped=True)
    with open_index(tokens.folder, names) as index:
        groups = zip(iterate_index(index), dropped, strict=True)
        found = [set(dropped_ids.reason_numbers(*group)) for group in groups]
    reasons = {number: reason for number, [reason] in enumerate(found) if reason < 2}
    assert reasons == {7: 0, 9: 1, 44: 1, 110: 0}


def build(output, vocab_file, inputs, *arguments):
    fixed = ("--vocab", vocab_file, *FLAGS)
    return run("build", "--input", *inputs, "--output", output, *fixed, *arguments)


@pytest.fixture(scope="module")
def similar_corpus(tmp_path_factory):
    """Two files: 80 documents, then 30 with one word replaced, 10 copies and 20 others."""
    folder = tmp_path_factory.mktemp("similar")
    first = [make_text(number) for number in range(80)]
    words = [text.split(" ") for text in first[:30]]
    changed = [" ".join([*row[:n], "another", *row[n + 1 :]]) for n, row in enumerate(words)]
    second = changed + first[30:40] + [make_text(number) for number in range(200, 220)]
    write_texts(folder / "a.jsonl", first)
    write_texts(folder / "b.jsonl", second)
    return folder, first, second


@pytest.fixture(scope="module")
def deduplicated(similar_corpus, vocab_file, tmp_path_factory):
    output = tmp_path_factory.mktemp("deduplicated") / "data"
    assert build(output, vocab_file, [similar_corpus[0]], *NEAR) == 0
    return open_dataset(str(output))


@pytest.fixture
def copied(deduplicated, tmp_path):
    return Path(shutil.copytree(deduplicated.folder.path, tmp_path / "data"))


@pytest.mark.processes
def test_documents_are_counted_some_at_a_time(deduplicated, monkeypatch):
    for rows in (1, 7, 10**6):
        monkeypatch.setattr(verify, "_ROWS_AT_ONCE", rows)
        assert verify_dataset(deduplicated) == []


@pytest.mark.processes
def test_a_build_drops_what_the_rule_drops(deduplicated, similar_corpus, capsys):
    _, first, second = similar_corpus
    cleaned = {clean_text(text) for text in first + second}
    expected = {document_id(text) for text in cleaned} - oracle(sorted(cleaned), 0.8)
    counters = deduplicated.manifest.counters
    ids = deduplicated.read_file("documents.ids")
    assert [ids[start : start + 16] for start in range(0, len(ids), 16)] == sorted(expected)
    assert counters["documents"] == len(expected)
    assert counters["dropped_near_duplicate"] == len(cleaned) - len(expected) == 30
    assert counters["dropped_duplicate"] == len(first) + len(second) - len(cleaned) == 10
    assert deduplicated.manifest.settings["near_duplicates"] == 0.8
    assert verify_dataset(deduplicated) == []
    assert run("inspect", deduplicated.url, "--dropped", "true") == 0
    shown = capsys.readouterr().out
    assert all(said in shown for said in ("near_duplicate: ", "a.jsonl:", "% like document "))
    assert "near duplicate" in Path(deduplicated.folder.path, "report.html").read_text()
    left = Path(deduplicated.folder.path, "tokens")
    assert not (left / "near_duplicates").exists()
    assert (left / DROPPED).exists()


CUTS = {
    "parts": ("--part_bytes", 4096),
    "shuffle": ("--exchange", "shuffle", "--part_bytes", 4096),
}


@pytest.mark.processes
@pytest.mark.parametrize("arguments", CUTS.values(), ids=CUTS)
def test_the_root_hash_does_not_depend_on_how_work_is_cut(
    deduplicated, similar_corpus, vocab_file, tmp_path, arguments, monkeypatch
):
    monkeypatch.setattr(near_duplicates_job, "TASK_DOCUMENTS", 7)  # small tasks and ranges
    monkeypatch.setattr(near_duplicates_job, "RANGE_ROWS", 64)
    output = tmp_path / "data"
    assert build(output, vocab_file, [similar_corpus[0]], *NEAR, *arguments) == 0
    assert root_hash(output) == deduplicated.manifest.root_hash


@pytest.mark.processes
def test_order_and_names_of_files_change_nothing(
    deduplicated, similar_corpus, vocab_file, tmp_path
):
    _, first, second = similar_corpus
    write_texts(tmp_path / "x.jsonl", [*second, *first][::-1])
    assert build(tmp_path / "data", vocab_file, [tmp_path / "x.jsonl"], *NEAR) == 0
    assert root_hash(tmp_path / "data") == deduplicated.manifest.root_hash


class KilledError(Exception):
    """Stands for a kill at one write."""


@pytest.mark.processes
@pytest.mark.parametrize("fatal", [1, 6, 12])
def test_a_kill_anywhere_in_between_leaves_the_same_hash(
    deduplicated, similar_corpus, vocab_file, tmp_path, monkeypatch, fatal
):
    output = tmp_path / "data"
    monkeypatch.setattr(near_duplicates_job, "TASK_DOCUMENTS", 20)
    monkeypatch.setattr(near_duplicates_job, "RANGE_ROWS", 512)
    writes, write = itertools.count(1), Folder.write
    ends = ("settings.json", "dropped.ids", "prefixes.rows", "tokens.json")

    def die(folder, name, data):
        is_tokens = folder.path.endswith("/tokens") and name in ends
        if (is_tokens or name.startswith("near_duplicates/")) and next(writes) == fatal:
            raise KilledError(name)
        write(folder, name, data)

    arguments = ([similar_corpus[0]], *NEAR)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", die)
        with pytest.raises((KilledError, RuntimeError)):
            build(output, vocab_file, *arguments)
    finished = {path: path.stat().st_mtime_ns for path in output.glob("tokens/near_duplicates/*")}
    seen, original = {}, near_duplicates_job.write_found

    def watch(*arguments):
        seen.update({path: path.stat().st_mtime_ns for path in finished if path.exists()})
        return original(*arguments)

    monkeypatch.setattr(near_duplicates_job, "write_found", watch)
    assert build(output, vocab_file, *arguments) == 0
    assert all(finished[path] == when for path, when in seen.items()), "nothing is written twice"
    assert root_hash(output) == deduplicated.manifest.root_hash
    assert not (output / "tokens/near_duplicates").exists()


@pytest.mark.processes
def test_shards_are_built_from_the_documents_that_were_chosen(
    deduplicated, copied, vocab_file, capsys
):
    shutil.rmtree(copied / "train")
    for name in ("manifest.json", "documents.ids"):
        (copied / name).unlink()
    words = ("shards", "--output", copied, "--vocab", vocab_file, *FLAGS)
    assert run(*words) == 2
    assert "near_duplicates was 0.8 and is now None" in capsys.readouterr().err
    assert run(*words, *NEAR) == 0
    assert root_hash(copied) == deduplicated.manifest.root_hash


@pytest.mark.processes
def test_another_threshold_takes_the_same_encoded_documents(
    deduplicated, similar_corpus, vocab_file, tmp_path
):
    tokens = tmp_path / "tokens"
    shutil.copytree(f"{deduplicated.folder.path}/tokens", tokens)
    before = {path.name: path.stat().st_mtime_ns for path in tokens.glob("*.tokens")}
    arguments = ([similar_corpus[0]], "--tokens", tokens)
    assert build(tmp_path / "strict", vocab_file, *arguments, "--near_duplicates", 0.95) == 0
    assert {path.name: path.stat().st_mtime_ns for path in tokens.glob("*.tokens")} == before
    counters = open_dataset(str(tmp_path / "strict")).manifest.counters
    assert counters["documents"] > deduplicated.manifest.counters["documents"]
    assert build(tmp_path / "again", vocab_file, *arguments, *NEAR) == 0
    assert root_hash(tmp_path / "again") == deduplicated.manifest.root_hash


@pytest.fixture(scope="module")
def half(similar_corpus, vocab_file, tmp_path_factory):
    """A dataset of the first file, whose encoded documents are gone."""
    output = tmp_path_factory.mktemp("half") / "data"
    assert build(output, vocab_file, [similar_corpus[0] / "a.jsonl"]) == 0
    shutil.rmtree(output / "tokens")
    return open_dataset(str(output))


@pytest.mark.processes
@pytest.mark.parametrize("exchange", ["files", "shuffle"])
def test_documents_of_another_dataset_are_left_out(
    half, similar_corpus, vocab_file, tmp_path, exchange
):
    folder, _, second = similar_corpus
    output = tmp_path / "grown"
    cut = ("--exchange", exchange, "--part_bytes", 4096)
    flags = ("--exclude_documents_of", half.url, *cut)
    assert build(output, vocab_file, [folder], *flags) == 0
    dataset = open_dataset(str(output))
    counters = dataset.manifest.counters
    assert (counters["dropped_excluded"], counters["dropped_duplicate"]) == (80, 10)
    assert counters["documents"] == len(second) - 10
    excluded = dataset.manifest.settings["excluded_documents"]
    assert excluded == [half.manifest.settings["documents_hash"]]
    files = [each.read_file("documents.ids") for each in (half, dataset)]
    assert not set.intersection(*(set(np.frombuffer(each, "V16").tolist()) for each in files))
    # The same documents, had the others never been there.
    write_texts(tmp_path / "only.jsonl", second[:30] + second[40:])
    assert build(tmp_path / "only", vocab_file, [tmp_path / "only.jsonl"]) == 0
    assert root_hash(tmp_path / "only") == dataset.manifest.root_hash
    assert build(output, vocab_file, [folder], *flags) == 0  # a finished build is left alone


@pytest.mark.processes
def test_excluded_and_near_duplicates_together_count_each_once(
    half, similar_corpus, vocab_file, tmp_path
):
    flags = ("--exclude_documents_of", half.url, *NEAR)
    assert build(tmp_path / "data", vocab_file, [similar_corpus[0]], *flags) == 0
    counters = open_dataset(str(tmp_path / "data")).manifest.counters
    assert counters["dropped_excluded"] == 80
    dropped = sum(count for name, count in counters.items() if name.startswith("dropped_"))
    assert counters["documents"] + dropped == counters["documents_read"] == 140


@pytest.mark.processes
def test_a_dataset_that_cannot_be_excluded_is_named(
    half, similar_corpus, vocab_file, tmp_path, capsys
):
    def refused(url, output=tmp_path / "data"):
        inputs = [similar_corpus[0] / "b.jsonl"]
        assert build(output, vocab_file, inputs, "--exclude_documents_of", url) == 2
        return capsys.readouterr().err

    assert "not a finished dataset" in refused(tmp_path / "none")
    broken = tmp_path / "broken"
    shutil.copytree(half.folder.path, broken)
    data = (broken / "documents.ids").read_bytes()
    for wrong in (data[:-16], data[:-3], data[:5] + b"\x00" + data[6:], data + data[-16:], b""):
        (broken / "documents.ids").write_bytes(wrong)
        assert "not the documents of" in refused(broken)
        assert len(verify_dataset(open_dataset(str(broken)))) == 1
    (broken / "documents.ids").unlink()
    said = refused(broken)
    assert "documents.ids is missing" in said
    assert "run the command that built it once more" in said
    [missing] = verify_dataset(open_dataset(str(broken)))
    assert missing.where.endswith("documents.ids")
    assert "run the command that built the dataset once more" in missing.what
    assert "is the dataset being built" in refused(half.url, half.folder.path)


@pytest.mark.processes
def test_running_a_build_again_writes_the_ids_it_lacks(
    deduplicated, copied, similar_corpus, vocab_file
):
    (copied / "documents.ids").unlink()
    assert build(copied, vocab_file, [similar_corpus[0]], *NEAR) == 0
    assert (copied / "documents.ids").read_bytes() == deduplicated.read_file("documents.ids")


@pytest.mark.processes
def test_ids_of_several_sources_say_which(similar_corpus, vocab_file, tmp_path):
    folder = similar_corpus[0]
    config = tmp_path / "two.yaml"
    sources = [{"name": name, "input": [str(folder / f"{name}.jsonl")]} for name in ("a", "b")]
    config.write_text(json.dumps({"sources": sources}))
    for name, more in (("data", ()), ("near", NEAR)):
        words = ("--config", config, "--output", tmp_path / name, "--vocab", vocab_file)
        assert run("build", *words, *FLAGS, *more) == 0
    dataset, near = open_dataset(str(tmp_path / "data")), open_dataset(str(tmp_path / "near"))
    assert len(dataset.read_file("documents.ids")) == 17 * dataset.manifest.counters["documents"]
    assert verify_dataset(dataset) == []
    rows = [source["counters"]["dropped_near_duplicate"] for source in near.manifest.sources]
    assert sum(rows) == near.manifest.counters["dropped_near_duplicate"] == 30
    assert all(rows)
    flags = ("--exclude_documents_of", dataset.url)
    assert build(tmp_path / "rest", vocab_file, [folder / "b.jsonl"], *flags) == 2


def test_a_runner_that_loses_a_file_of_bands_is_refused(tmp_path):
    folder, rule = Folder(str(tmp_path)), similarity_rule(0.8)
    planned = broadcast(("near_duplicates/a.bands", "near_duplicates/b.bands"), folder)
    keys = near_duplicates_job.KeyRange(0, 255, "near_duplicates/c.found")
    said = r"of 2 files of bands the runner delivered 1, without .*/near_duplicates/b.bands"
    with pytest.raises(ValueError, match=said):
        near_duplicates_job.write_found(keys, ["near_duplicates/a.bands"], planned, rule, folder)
    assert list(tmp_path.iterdir()) == []
