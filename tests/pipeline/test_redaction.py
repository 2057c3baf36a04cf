"""A redacted dataset is its predecessor without the instances of some documents, and no more."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import fsspec
import numpy as np
import pytest

from pipeline.inspect.deep_verify import DeepCheck
from pipeline.inspect.summary import read_report
from pipeline.redaction import write as redaction_write
from pipeline.redaction.plan import plan_redaction
from pipeline.redaction.rewrite import cut_blocks, keep_instances
from pipeline.settings import BuildSettings
from pipeline.shards import document_index
from pipeline.shards.block import block_instances, concatenate_blocks, to_record_batch
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.shards.document_ids import are_among
from pipeline.shards.seal import add_seals
from pipeline.shards.verify import verify_dataset
from pipeline.storage import copies
from pipeline.storage.folder import Folder
from pipeline.transforms.tokens import make_claim
from tests.datasets import TINY
from tests.keyed_store import OPTIONS, write_to_store
from tests.pipeline.programs import run

FLAGS = ("--seq_lens", "32", "64", "--passes", "2", "--num_buckets", "4", "--workers", "1")
NOT_COPIED = {"tokens", "vocab.json", "word_counts.parquet"}
LIKE_THE_FIRST = {"report.json", "report.html", "README.md"}  # have the name of the dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory, corpus, vocab_file):
    """A dataset of 120 documents with two passes, two lengths and four buckets."""
    output = tmp_path_factory.mktemp("redaction") / "data"
    flags = ("--input", corpus, "--vocab", vocab_file, "--output", output, *FLAGS)
    assert run("build", *flags) == 0
    return output


def ids_of(folder):
    """The ids of a dataset's documents in hex, with the numbers of their sources."""
    dataset = open_dataset(str(folder))
    size = 17 if len(dataset.manifest.sources) > 1 else 16
    rows = dataset.folder.read("documents.ids")
    starts = range(0, len(rows), size)
    return {rows[i : i + 16].hex(): int(rows[i + 16]) if size == 17 else 0 for i in starts}


def instances_of(dataset, shard):
    """The instances of a shard as dictionaries, in order."""
    blocks = list(read_blocks(dataset, shard))
    return [row for block in blocks for row in to_record_batch(block).to_pylist()]


def redact(folder, documents, output, *flags, where=None):
    """Runs the command with a list of ids; its exit code."""
    path = (where or output.parent) / f"{output.name}.list"
    path.write_text("".join(f"{document}\n" for document in documents))
    return run("redact", folder, "--documents", path, "--output", output, *flags)


def contents(folder):
    """The bytes of all files of a folder but those that name it, by their names."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    names = {str(path.relative_to(folder)): path for path in paths}
    return {name: path.read_bytes() for name, path in names.items() if name not in LIKE_THE_FIRST}


def deep_findings(dataset):
    check = DeepCheck(dataset)
    return [str(each) for each in [*verify_dataset(dataset, check_block=check), *check.findings()]]


def check_against_brute_force(old_folder, new_folder, documents):
    """Every instance, table, count and seal of a redacted dataset."""
    old = open_dataset(str(old_folder))
    new = open_dataset(str(new_folder))
    prefixes = {int(document[:16], 16) for document in documents}
    assert [shard.name for shard in new.all_shards] == [shard.name for shard in old.all_shards]
    num_left_out = 0
    for before, after in zip(old.all_shards, new.all_shards, strict=True):
        instances = instances_of(old, before)
        kept = [row for row in instances if not {row["document_a"], row["document_b"]} & prefixes]
        num_left_out += len(instances) - len(kept)
        assert instances_of(new, after) == kept
        assert after.instances == len(kept)
        same_bytes = (old_folder / before.name).samefile(new_folder / after.name)
        assert same_bytes == (len(kept) == len(instances)), before.name
    assert deep_findings(new) == []

    ids = {name: source for name, source in ids_of(old_folder).items() if name not in documents}
    assert ids_of(new_folder) == ids
    manifest = new.manifest
    assert manifest.counters["documents"] == manifest.seal.documents == len(ids)
    assert manifest.settings["redactions"][-1] == {
        "root_hash": old.manifest.root_hash,
        "documents": len(documents),
        "instances": num_left_out,
    }
    by_source = Counter(ids.values())
    for number, source in enumerate(manifest.sources):
        assert source["counters"]["documents"] == by_source[number]
    assert new.manifest.root_hash != old.manifest.root_hash
    return num_left_out


@pytest.mark.parametrize("seed", range(4))
def test_it_holds_exactly_the_other_instances(data, tmp_path, seed, capsys):
    """Both splits, both lengths and both passes; a document may be A, or a random B."""
    ids = sorted(ids_of(data))
    rng = np.random.default_rng(seed)
    chosen = set(rng.choice(ids, rng.integers(1, 9), replace=False).tolist())
    chosen.add(ids[0])  # held out for validation
    before = contents(data)
    assert redact(data, chosen, tmp_path / "new") == 0
    num_left_out = check_against_brute_force(data, tmp_path / "new", chosen)
    said = capsys.readouterr().out
    assert f"{len(chosen)} document(s) of {tmp_path}/new.list: {num_left_out:,} of" in said
    assert contents(data) == before

    for name, content in contents(tmp_path / "new").items():
        if not name.endswith(".tar"):
            assert not any(document[:16].encode() in content for document in chosen), name
            assert not any(bytes.fromhex(document) in content for document in chosen), name
    names = {path.name for path in data.iterdir()} - NOT_COPIED
    assert {path.name for path in (tmp_path / "new").iterdir()} == names
    assert run("verify", tmp_path / "new", "--absent", tmp_path / "new.list") == 0
    said = capsys.readouterr().out
    assert f"none of the {len(chosen)} document(s) of {tmp_path}/new.list is in it" in said
    assert f"Redacted: {len(chosen)} document(s), in {num_left_out:,} instance(s), were" in said
    card = (tmp_path / "new/README.md").read_text()
    assert f"Dropped documents: redacted {len(chosen)}." in card
    assert open_dataset(str(data)).manifest.root_hash in card
    report = json.loads((tmp_path / "new/report.json").read_bytes())
    assert report["dataset"]["counters"]["dropped_redacted"] == len(chosen)


def test_sources_and_weights(mixture, tmp_path):
    """Tokens of each source are counted anew; a pass uses documents thrice, or not at all."""
    old = Path(mixture.url)
    ids = ids_of(old)
    rng = np.random.default_rng(7)
    chosen = set(rng.choice(sorted(ids), 9, replace=False).tolist()) | set(sorted(ids)[:2])
    assert redact(old, chosen, tmp_path / "new") == 0
    check_against_brute_force(old, tmp_path / "new", chosen)
    new = open_dataset(str(tmp_path / "new"))
    sources = {int(document[:16], 16): source for document, source in ids.items()}
    for shard in new.all_shards:
        tokens = [0, 0]
        for row in instances_of(new, shard):
            tokens[sources[row["document_a"]]] += row["segment_a_length"]
            tokens[sources[row["document_b"]]] += len(row["input_ids"]) - row["segment_a_length"]
        assert shard.source_tokens == tuple(tokens)


def test_the_last_ids_of_validation(data, tmp_path):
    """The highest validation document of a source may be among the documents."""
    [source] = open_dataset(str(data)).manifest.sources
    ids = sorted(ids_of(data))
    last_id = source["validation"]["last_id"]
    held_out = [document for document in ids if document <= last_id]
    assert len(held_out) == source["validation"]["documents"]
    assert redact(data, [last_id, ids[-1]], tmp_path / "new") == 0
    [source] = open_dataset(str(tmp_path / "new")).manifest.sources
    assert source["validation"]["last_id"] == held_out[-2]
    assert source["validation"]["documents"] == len(held_out) - 1
    assert deep_findings(open_dataset(str(tmp_path / "new"))) == []


def test_a_redaction_of_a_redaction(data, tmp_path):
    """It has the content of one redaction of both lists, and says both."""
    ids = sorted(ids_of(data))
    first = [ids[0], ids[50], ids[51]]
    second = [ids[1], ids[90]]
    assert redact(data, first, tmp_path / "one") == 0
    assert redact(tmp_path / "one", second, tmp_path / "two") == 0
    check_against_brute_force(tmp_path / "one", tmp_path / "two", second)
    assert redact(data, first + second, tmp_path / "both") == 0
    [one, two, both] = [
        open_dataset(str(tmp_path / name)).manifest for name in ("one", "two", "both")
    ]
    assert two.root_hash == both.root_hash
    assert two.seal == both.seal
    assert two.counters == both.counters
    redactions = two.settings["redactions"]
    assert [redaction["documents"] for redaction in redactions] == [3, 2]
    assert redactions[1]["root_hash"] == one.root_hash
    assert (
        sum(redaction["instances"] for redaction in redactions)
        == (both.settings["redactions"][0]["instances"])
    )


def test_a_bucket_that_loses_all_its_documents(data, tmp_path):
    """Its shards hold no instance; every rule of the format still holds."""
    ids = sorted(ids_of(data))
    validation = open_dataset(str(data)).manifest.sources[0]["validation"]["last_id"]
    bucket = [document for document in ids if document > validation and document[0] in "89ab"]
    assert redact(data, bucket, tmp_path / "new") == 0
    check_against_brute_force(data, tmp_path / "new", bucket)
    shards = open_dataset(str(tmp_path / "new")).shards("train", 32, 0)
    assert [shard.instances > 0 for shard in shards] == [True, True, False, True]
    assert shards[2].seal.documents == 0


def test_equal_bytes_whoever_writes(data, tmp_path, monkeypatch):
    """The number of shards that are written at once changes nothing, and no list its order."""
    ids = sorted(ids_of(data))
    chosen = [ids[0], ids[40], ids[80], ids[119]]
    assert redact(data, chosen, tmp_path / "new") == 0
    monkeypatch.setattr(redaction_write, "_WRITTEN_AT_ONCE", 1)
    assert redact(data, [*reversed(chosen), chosen[0][:16]], tmp_path / "again") == 0
    assert contents(tmp_path / "new") == contents(tmp_path / "again")


def test_the_plan_alone(data, tmp_path, capsys):
    ids = sorted(ids_of(data))
    assert redact(data, ids[60:61], tmp_path / "new", "--plan") == 0
    assert not (tmp_path / "new").exists()
    said = capsys.readouterr().out
    assert "\n4 shard(s) of" in said
    assert "\n14 shard(s) of" in said
    assert "are linked (hard links; copies if --output is on another disk)" in said


class KilledError(RuntimeError):
    """Stands for a kill in a test."""


def dies_after(function, number):
    """The function, which raises KilledError in place of its call of this number, from 0."""
    calls = iter(range(number))

    def call(*arguments):
        if next(calls, None) is None:
            raise KilledError
        return function(*arguments)

    return call


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("rewrite_shard", 0), ("rewrite_shard", 3), ("copy_file", 0), ("copy_file", 5),
        ("write_document_ids", 0), ("publish_dataset", 0), ("write_card", 0), ("write_report", 0),
    ],
)  # fmt: skip
def test_an_interruption_loses_nothing(data, corpus, tmp_path, monkeypatch, capsys, name, number):
    """Nothing looks whole before its manifest is there; the same command continues."""
    ids = sorted(ids_of(data))
    chosen = [ids[0], *ids[30:34]]
    assert redact(data, chosen, tmp_path / "whole") == 0
    output = tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr(redaction_write, "_WRITTEN_AT_ONCE", 1)
        patch.setattr(redaction_write, "AT_ONCE", 1)
        patch.setattr(redaction_write, name, dies_after(getattr(redaction_write, name), number))
        with pytest.raises(KilledError):
            redact(data, chosen, output)
    is_whole = name in ("write_card", "write_report")
    assert (output / "manifest.json").exists() == is_whole
    if not is_whole:
        capsys.readouterr()
        assert run("verify", output) == 2
        said = capsys.readouterr().err
        assert "a redaction that is not finished; run the same `python -m pipeline redact`" in said
        assert run("build", "--input", corpus, "--output", output) == 2
        assert "holds a redacted dataset, to which no build can add" in capsys.readouterr().err
        assert redact(data, chosen[1:], output) == 2
        assert "holds an unfinished dataset, not" in capsys.readouterr().err
    finished = {path: path.stat().st_mtime_ns for path in output.rglob("*.tar")}
    assert redact(data, chosen, output) == 0
    assert contents(output) == contents(tmp_path / "whole")
    assert (output / "report.json").exists()
    if number > 1 and name == "rewrite_shard":
        records = {path: time for path, time in finished.items() if path.exists()}
        assert len(records) == number
        assert {path: path.stat().st_mtime_ns for path in records} == records


def test_a_shard_that_the_store_lost_is_missed(data, tmp_path, monkeypatch, capsys):
    ids = sorted(ids_of(data))
    real = redaction_write.write_document_ids

    def lose(folder, chunks):
        real(folder, chunks)
        folder.remove(["train/L32/pass-00/shard-00000.tar"])

    monkeypatch.setattr(redaction_write, "write_document_ids", lose)
    assert redact(data, ids[-1:], tmp_path / "new") == 2
    said = capsys.readouterr().err
    assert "shard-00000.tar: found nothing, not what was written: the store lost it" in said
    assert not (tmp_path / "new/manifest.json").exists()
    monkeypatch.undo()
    assert redact(data, ids[-1:], tmp_path / "new") == 0
    check_against_brute_force(data, tmp_path / "new", ids[-1:])


def test_ids_that_change_after_the_plan_are_not_written(data, tmp_path, monkeypatch, capsys):
    folder, document = copied(data, tmp_path)
    real = redaction_write.write_document_ids

    def change_first(output, chunks):
        swap_ids(folder)
        real(output, chunks)

    monkeypatch.setattr(redaction_write, "write_document_ids", change_first)
    assert redact(folder, [document], tmp_path / "new") == 2
    expected = "data/documents.ids was changed while this command read it; run the same command"
    assert expected in capsys.readouterr().err
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert not names & {"documents.ids", "manifest.json"}


def break_one_byte(path):
    """Replaces a file by another one of the same size."""
    content = bytearray(path.read_bytes())
    content[700] ^= 255
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize("target", ["disk", "store"])
def test_a_copied_shard_is_checked(data, tmp_path, monkeypatch, capsys, target):
    """It was replaced by one of the same size, and stays as it is in the new dataset."""
    folder, document = copied(data, tmp_path)
    bucket = int(document[0], 16) // 4
    name = f"train/L32/pass-01/shard-{(bucket + 1) % 4:05d}.tar"
    break_one_byte(folder / name)

    def refuse(*_):
        raise OSError(18, os.strerror(18))

    monkeypatch.setattr(copies.os, "link", refuse)
    store = fsspec.filesystem("memory")
    output = str(tmp_path / "new") if target == "disk" else "memory://redaction/new"
    (tmp_path / "list").write_text(f"{document}\n")
    try:
        assert run("redact", folder, "--documents", tmp_path / "list", "--output", output) == 2
        names = Folder(output).list()
    finally:
        if target == "store":
            store.rm("/redaction", recursive=True)
    said = capsys.readouterr().err
    assert f"{folder}/{name}: damaged or changed: its sha256 is" in said
    assert not names.keys() & {name, "manifest.json"}


def plans_for(data, tmp_path, documents):
    """A plan for each of some documents alone."""
    plans = []
    for number, document in enumerate(documents):
        (tmp_path / f"{number}.list").write_text(f"{document}\n")
        plans.append(plan_redaction(open_dataset(str(data)), str(tmp_path / f"{number}.list")))
    return plans


@pytest.fixture
def output_in_a_store():
    """A folder in a store, where nothing keeps other commands out."""
    yield Folder("memory://redaction/new")
    fsspec.filesystem("memory").rm("/redaction", recursive=True)


def test_another_redaction_ends_before_this_one_begins(data, tmp_path, output_in_a_store):
    first, second = plans_for(data, tmp_path, sorted(ids_of(data))[60:62])
    assert not redaction_write.check_output(first, output_in_a_store)
    redaction_write.write_redaction(second, output_in_a_store)
    with pytest.raises(FileExistsError, match="holds another dataset, not"):
        redaction_write.write_redaction(first, output_in_a_store)


@pytest.mark.parametrize(
    ("is_ended", "message"), [(True, "holds another dataset"), (False, "an unfinished dataset")]
)
def test_a_store_that_lists_files_late_hides_no_other_redaction(
    data, tmp_path, monkeypatch, output_in_a_store, is_ended, message
):
    first, second = plans_for(data, tmp_path, sorted(ids_of(data))[60:62])
    if is_ended:
        redaction_write.write_redaction(second, output_in_a_store)
    else:
        output_in_a_store.write(
            "_tasks/settings.json", json.dumps(second.manifest.settings).encode()
        )
    monkeypatch.setattr(Folder, "list", lambda _: {})
    with pytest.raises(FileExistsError, match=message):
        redaction_write.check_output(first, output_in_a_store)


@pytest.mark.parametrize("is_ended", [True, False])
def test_another_redaction_writes_at_the_same_time(
    data, tmp_path, monkeypatch, output_in_a_store, is_ended
):
    """Both have found the folder empty."""
    first, second = plans_for(data, tmp_path, sorted(ids_of(data))[60:62])
    real = redaction_write._write_small_files

    def write_the_other_first(plan, output):
        monkeypatch.undo()
        if is_ended:
            redaction_write._write(second, output)
        else:
            output.write("_tasks/settings.json", json.dumps(second.manifest.settings).encode())
        real(plan, output)

    monkeypatch.setattr(redaction_write, "_write_small_files", write_the_other_first)
    with pytest.raises(FileExistsError, match="another command has written a dataset there"):
        redaction_write.write_redaction(first, output_in_a_store)
    if is_ended:
        manifest = open_dataset(output_in_a_store.url).manifest
        assert manifest.settings == second.manifest.settings
    else:
        assert not output_in_a_store.exists("manifest.json")


@pytest.mark.parametrize("is_rewritten", [True, False])
def test_a_finished_dataset_that_lost_a_shard_is_not_called_complete(
    data, tmp_path, capsys, is_rewritten
):
    document = sorted(ids_of(data))[60]
    new = tmp_path / "new"
    assert redact(data, [document], new) == 0
    bucket = int(document[0], 16) // 4
    name = f"train/L32/pass-01/shard-{bucket if is_rewritten else (bucket + 1) % 4:05d}.tar"
    (new / name).unlink()
    assert redact(data, [document], new) == 2
    said = capsys.readouterr().err
    assert f"{new}/{name} is missing, the shard table says" in said


def test_a_full_disk_of_temporary_files_is_named(data, tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(document_index, "_write", refuse)
    assert redact(data, sorted(ids_of(data))[60:61], tmp_path / "new") == 2
    said = capsys.readouterr().err
    assert "No space left on device; give a folder on a disk with more space by the var" in said
    assert len(said.splitlines()) == 1


def copied(data, tmp_path):
    """A copy of the dataset that a test may damage, and the id of one of its documents."""
    shutil.copytree(data, tmp_path / "data")
    return tmp_path / "data", sorted(ids_of(data))[60]


def grow(folder):
    (folder / "_tasks").mkdir()
    (folder / "_tasks/plan.json").write_bytes(b"{}")


def cut(folder):
    with (folder / "train/L32/pass-01/shard-00001.tar").open("ab") as file:
        file.write(b"more")


def swap_ids(folder):
    data = (folder / "documents.ids").read_bytes()
    (folder / "documents.ids").write_bytes(bytes(16) + data[16:])


def damage_shard(folder):
    for path in folder.glob("train/L32/pass-00/*.tar"):
        data = bytearray(path.read_bytes())
        data[700] ^= 255
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "holds no manifest.json: not a"),
        (shutil.rmtree, "holds no manifest.json: not a finished dataset"),
        (grow, "is still growing: a build is at work on it (_tasks/plan.json); wait until it has"),
        (cut, "shard-00001.tar has 20,484 bytes, the shard table says 20,480 bytes; restore or"),
        (
            lambda folder: (folder / "train/L64/pass-00/shard-00003.tar").unlink(),
            "shard-00003.tar is missing, the shard table says",
        ),
        (swap_ids, "documents.ids: not the documents of"),
        (lambda folder: (folder / "documents.ids").unlink(), "documents.ids is missing, so which"),
        (damage_shard, "damaged: its crc32 is not the block table's; restore or rebuild"),
    ],
)
def test_a_dataset_that_is_gone_changed_or_growing(data, tmp_path, capsys, damage, message):
    folder, document = copied(data, tmp_path)
    damage(folder)
    assert redact(folder, [document], tmp_path / "new") == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "new/manifest.json").exists()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["f" * 32], "new.list lists ffffffffffffffff, which no dataset holds ("),
        (["no id"], "new.list:1: found 'no', expected a document's id"),
        (["# nothing"], "new.list lists no document"),
    ],
)
def test_a_list_that_cannot_be_meant(data, tmp_path, capsys, lines, message):
    assert redact(data, lines, tmp_path / "new") == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_nothing_of_a_pass_would_be_left(data, tmp_path, capsys):
    last_id = open_dataset(str(data)).manifest.sources[0]["validation"]["last_id"]
    held_out = [document for document in ids_of(data) if document <= last_id]
    assert redact(data, held_out, tmp_path / "new") == 2
    assert "leaves no instance in validation/L32/pass-00 of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("data", "or one of the two is inside the other; give a folder elsewhere"),
        ("data/train/new", "or one of the two is inside the other"),
        (".", "or one of the two is inside the other"),
        ("link/new", "or one of the two is inside the other"),
        ("file", "is a file; give a new folder"),
        ("notes", "holds other files, such as a.txt; give a new folder"),
        ("other", "holds another dataset, not"),
    ],
)
def test_an_output_that_is_something_else(data, tmp_path, capsys, place, message):
    folder, document = copied(data, tmp_path)
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").write_text("text")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("text")
    shutil.copytree(data, tmp_path / "other")
    before = contents(tmp_path)
    lists = tmp_path.parent / f"{tmp_path.name}-lists"
    lists.mkdir()
    assert redact(folder, [document], tmp_path / place, where=lists) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert contents(tmp_path) == before


def test_the_report_says_it(data, tmp_path, capsys):
    """And `inspect` that there are no encoded documents."""
    ids = sorted(ids_of(data))
    assert redact(data, ids[60:62], tmp_path / "new") == 0
    capsys.readouterr()
    assert run("report", tmp_path / "new", "--output", tmp_path / "page.html") == 0
    said = capsys.readouterr().out
    assert "\nRedacted: 2 document(s), in " in said
    assert "Documents read are kept: 120 read; 118 kept, 2 dropped" in said
    assert run("inspect", tmp_path / "new", "--documents", ids[0][:16]) == 2
    assert "where documents come from is not known" in capsys.readouterr().err


def test_two_commands_with_one_output(data, tmp_path):
    """The second one waits for the first, and then sees what that has made."""
    ids = sorted(ids_of(data))
    assert redact(data, ids[60:61], tmp_path / "new") == 0
    before = contents(tmp_path / "new")
    (tmp_path / "list").write_text(f"{ids[61]}\n")
    plan = plan_redaction(open_dataset(str(data)), str(tmp_path / "list"))
    with pytest.raises(FileExistsError, match="holds another dataset, not"):
        redaction_write.write_redaction(plan, Folder(str(tmp_path / "new")))
    assert contents(tmp_path / "new") == before


@pytest.mark.parametrize("stage", ["build", "vocab", "tokens", "shards"])
def test_no_build_adds_to_it(data, corpus, vocab_file, tmp_path, capsys, stage):
    assert redact(data, sorted(ids_of(data))[60:61], tmp_path / "new") == 0
    before = contents(tmp_path / "new")
    flags = ("--vocab", vocab_file, "--output", tmp_path / "new", "--tokens", data / "tokens")
    inputs = () if stage == "shards" else ("--input", corpus)
    assert run(stage, *inputs, *flags, *FLAGS) == 2
    assert "holds a redacted dataset, to which no build can add" in capsys.readouterr().err
    assert contents(tmp_path / "new") == before


def test_no_pipeline_writes_documents_into_it(data, vocab_file, tmp_path):
    assert redact(data, sorted(ids_of(data))[60:61], tmp_path / "new") == 0
    settings = BuildSettings(output=str(tmp_path / "new"), vocab=str(vocab_file))
    with pytest.raises(ValueError, match="holds a redacted dataset, to which no build can add"):
        make_claim(settings)


def test_verify_names_what_must_be_absent(data, tmp_path, capsys):
    document = sorted(ids_of(data))[60]
    (tmp_path / "list").write_text(f"{document[:16]}\n")
    assert run("verify", data, "--absent", tmp_path / "list") == 2
    said = capsys.readouterr().out
    assert (
        f"documents.ids: lists 1 document(s) that must be absent, such as {document[:16]}" in said
    )
    assert said.count("instance(s) hold a document that must be absent") == 4
    assert "none of the" not in said


def test_verify_names_folders_with_the_text_of_documents(data, tmp_path, capsys):
    """Somebody copied tokens/ of the old dataset into the new one, to see places of documents."""
    document = sorted(ids_of(data))[60]
    new = tmp_path / "new"
    assert redact(data, [document], new) == 0
    shutil.copytree(data / "tokens", new / "tokens")
    assert run("verify", new, "--absent", tmp_path / "new.list") == 2
    said = capsys.readouterr().out
    assert f"{new}/tokens: may hold the text of documents that must be absent; delete" in said
    assert "none of the" not in said
    shutil.rmtree(new / "tokens")
    assert run("verify", new, "--absent", tmp_path / "new.list") == 0


def test_an_ask_list_serves(data, tmp_path):
    """The JSON lines that `trainer ask` writes."""
    document = sorted(ids_of(data))[60]
    lines = [json.dumps({"kind": "document", "id": document})]
    assert redact(data, lines, tmp_path / "new") == 0
    check_against_brute_force(data, tmp_path / "new", [document])


def test_a_list_in_a_store_is_read_with_the_options_of_the_command(data, tmp_path, capsys):
    document = sorted(ids_of(data))[60]
    url = write_to_store("lists/one", f"{document}\n".encode())
    new = tmp_path / "new"
    options = ("--storage_options", OPTIONS)
    assert run("redact", data, "--documents", url, "--output", new, *options) == 0
    check_against_brute_force(data, new, [document])
    assert run("verify", new, "--absent", url, *options) == 0
    assert f"none of the 1 document(s) of {url} is in it" in capsys.readouterr().out


def test_a_store_copies_by_itself(data, tmp_path, monkeypatch, capsys):
    """No byte of a shard that stays passes through this machine."""
    store = fsspec.filesystem("memory")
    store.put(str(data), "/redaction/old", recursive=True)
    passed = set()
    before_the_report = set()

    def noted(real):
        def call(self, path, *rest, **options):
            passed.add("/".join(Path(path).parts[3:]))
            return real(self, path, *rest, **options)

        return call

    def report(dataset):
        before_the_report.update(passed)
        return read_report(dataset)

    document = sorted(ids_of(data))[60]
    (tmp_path / "list").write_text(f"{document}\n")
    flags = ("--documents", tmp_path / "list", "--output")
    try:
        with monkeypatch.context() as patch:
            for name in ("cat_file", "pipe_file", "get_file", "put_file", "open"):
                patch.setattr(type(store), name, noted(getattr(type(store), name)))
            patch.setattr(redaction_write, "read_report", report)
            assert run("redact", "memory://redaction/old", *flags, "memory://redaction/new") == 0
        assert "are copied by the store itself" in capsys.readouterr().out
        store.get("/redaction/new", str(tmp_path / "got"), recursive=True)
    finally:
        store.rm("/redaction", recursive=True)
    assert redact(data, [document], tmp_path / "new") == 0
    assert contents(tmp_path / "got") == contents(tmp_path / "new")
    bucket = int(document[0], 16) // 4
    assert "blocks.parquet" in before_the_report
    shards = {name for name in before_the_report if name.endswith(".tar")}
    expected = {
        f"train/L{seq_len}/pass-0{number}/shard-{bucket:05d}.tar"
        for seq_len in (32, 64)
        for number in (0, 1)
    }
    # Only validation shards are read to see whether the document is in them.
    assert shards == expected | {
        f"validation/L{seq_len}/pass-00/shard-00000.tar" for seq_len in (32, 64)
    }


def test_another_store_gets_the_bytes(data, tmp_path, capsys):
    store = fsspec.filesystem("memory")
    document = sorted(ids_of(data))[60]
    (tmp_path / "list").write_text(f"{document}\n")
    flags = ("--documents", tmp_path / "list", "--output")
    try:
        assert run("redact", data, *flags, "memory://redaction/new") == 0
        assert "are copied through this machine" in capsys.readouterr().out
        store.get("/redaction/new", str(tmp_path / "got"), recursive=True)
    finally:
        store.rm("/redaction", recursive=True)
    assert redact(data, [document], tmp_path / "new") == 0
    assert contents(tmp_path / "got") == contents(tmp_path / "new")


def test_disks_without_links_and_shards_that_are_links(data, tmp_path, monkeypatch):
    """A dataset of the Hub's cache consists of symbolic links."""
    document = sorted(ids_of(data))[60]
    linked = tmp_path / "linked"
    shutil.copytree(data, linked)
    for path in linked.rglob("*.tar"):
        path.unlink()
        path.symlink_to(data / path.relative_to(linked))
    assert redact(linked, [document], tmp_path / "new") == 0
    assert not any(path.is_symlink() for path in (tmp_path / "new").rglob("*.tar"))
    check_against_brute_force(data, tmp_path / "new", [document])

    def refuse(*_):
        raise OSError(18, os.strerror(18))

    monkeypatch.setattr(copies.os, "link", refuse)
    assert redact(data, [document], tmp_path / "copied") == 0
    assert contents(tmp_path / "copied") == contents(tmp_path / "new")
    name = next(
        shard.name
        for shard in open_dataset(str(tmp_path / "copied")).all_shards
        if (tmp_path / "new" / shard.name).samefile(data / shard.name)
    )
    assert not (tmp_path / "copied" / name).samefile(data / name)


def test_ids_are_looked_up_in_a_list():
    ids = np.array([7, 1, 2**64 - 1, 0, 3], np.uint64)
    listed = np.array([0, 3, 7, 9], np.uint64)
    assert are_among(ids, listed).tolist() == [True, False, False, True, True]
    assert are_among(ids, listed[:0]).tolist() == [False] * 5
    assert are_among(ids[:0], listed).tolist() == []


def test_instances_are_taken_out_of_a_block():
    kept = keep_instances(TINY, np.array([False, True]))
    assert kept.input_ids.tolist() == [2, 13, 3, 4, 3]
    assert kept.offsets.tolist() == [0, 5]
    assert kept.masked_lm_positions.tolist() == [3]
    assert kept.masked_lm_ids.tolist() == [14]
    assert kept.masked_offsets.tolist() == [0, 1]
    assert kept.document_b.tolist() == [7]
    assert keep_instances(TINY, np.array([False, False])).offsets.tolist() == [0]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([3, 0, 4, 1], [3, 3, 2]), ([3, 3], [3, 3]), ([0, 0], [0]), ([8], [3, 3, 2]), ([1], [1])],
)
def test_blocks_are_cut_anew(make_block, sizes, expected):
    blocks = [make_block(size, first_id=10 * place) for place, size in enumerate(sizes)]
    cut = list(cut_blocks(blocks, 3))
    assert [block.num_instances for block in cut] == expected
    rows = to_record_batch(concatenate_blocks(blocks)).to_pylist()
    assert to_record_batch(concatenate_blocks(cut)).to_pylist() == rows


def test_every_pass_still_holds_every_document(data, tmp_path):
    """The seals of shards are without the documents, also where a shard is the old object."""
    ids = sorted(ids_of(data))
    chosen = [ids[1], ids[77]]
    assert redact(data, chosen, tmp_path / "new") == 0
    new = open_dataset(str(tmp_path / "new"))
    expected = 0
    for document in set(ids) - set(chosen):
        expected ^= int(document, 16)
    for pass_index in (0, 1):
        shards = [*new.shards("train", 64, pass_index), *new.shards("validation", 64, 0)]
        seal = add_seals(shard.seal for shard in shards)
        assert (seal.documents, int(seal.ids_xor, 16)) == (len(ids) - 2, expected)
        assert all(
            shard.instances // block_instances(64) <= len(new.blocks(shard)) for shard in shards
        )
