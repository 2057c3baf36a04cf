"""Seals: every document in exactly one bucket of every pass; what a runner or a store does otherwise ends the build."""

import dataclasses
import json
import random
import shutil
from pathlib import Path

import pytest

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.instances.build_bucket import gather_documents
from pipeline.jobs.broadcast import broadcast
from pipeline.jobs.exchange import (
    StoredDocuments,
    cut_part,
    group_tasks,
    pack_chunk,
    plan_tasks,
    refuse_repeats,
    unpack_chunk,
    unpack_group,
)
from pipeline.jobs.shard_records import ShardRecord, format_record, parse_record, record_name
from pipeline.jobs.shards_job import ShardBuilder
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset
from pipeline.shards.manifest import parse_shards_table, shards_table
from pipeline.shards.seal import NOTHING, Seal, add_seals, seal_documents
from pipeline.shards.verify import (
    describe_coverage,
    find_uncovered,
    pass_seals,
    verify_dataset,
)
from pipeline.stages.build_shards import choose_buckets, instance_rule
from pipeline.stages.build_tokens import read_store
from pipeline.storage.folder import Folder
from pipeline.tokens.bucket_seals import BucketContents, BucketFinder, BucketSums, total_seal
from pipeline.tokens.held_out import choose_held_out, split_ids
from pipeline.tokens.token_index import TokenParts, iterate_kept, open_index
from pipeline.tokens.token_parts import pack_documents, unpack_documents
from tests.datasets import edit_manifest
from tokenizer.vocab import parse_vocab

FLAGS = ("--passes", 2, "--seq_lens", 64, "--num_buckets", 4, "--part_bytes", 4096, "--workers", 1)
HASH = "0" * 64


def run(*arguments):
    return run_program(
        "python -m pipeline", "Tests.", COMMANDS, [str(argument) for argument in arguments]
    )


def test_a_seal_by_hand():
    ids = [
        bytes.fromhex("0f" * 16),
        bytes.fromhex("f1" + "00" * 15),
        bytes.fromhex("01" + "ff" * 15),
    ]
    assert seal_documents(ids, 90) == Seal(3, 90, "ff" + "f0" * 15)
    assert seal_documents([], 0) == NOTHING
    parts = [seal_documents(ids[:1], 40), seal_documents(ids[1:], 50)]
    assert add_seals(parts) == add_seals(reversed(parts)) == Seal(3, 90, "ff" + "f0" * 15)
    assert (
        str(Seal(1201, 9000, "0" * 32))
        == f"1,201 documents of 9,000 tokens (xor of ids {'0' * 32})"
    )


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Encoded documents, with five copies, and what their buckets must hold."""

    tokens: TokenParts
    part_names: tuple
    buckets: list
    contents: dict
    rules: dict

    def tasks(self, name):
        tasks = plan_tasks(self.buckets, [64], 2, self.contents)
        return [task for task in tasks if task.bucket.name == name]

    def groups(self):
        """What a runner that keeps its promises delivers."""
        found = {}
        for part in self.part_names:
            for key, chunk in cut_part(part, self.tokens, self.buckets):
                found.setdefault(key, []).append(chunk)
        return found

    def deliver(self, key, chunks, output):
        """Builds a bucket of what a runner delivered."""
        tasks = broadcast(
            group_tasks(plan_tasks(self.buckets, [64], 2, self.contents)),
            Folder(str(output)),
        )
        found, documents = unpack_group((key, chunks), self.tokens, tasks)
        return list(ShardBuilder(Folder(str(output)), self.rules, 1, HASH).build(found, documents))


@pytest.fixture(scope="module")
def encoded(corpus, texts, vocab_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoded")
    folder.joinpath("copies.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts[:40:8])
    )
    words = (
        "--input",
        corpus,
        folder / "copies.jsonl",
        "--output",
        folder / "data",
        "--vocab",
        vocab_file,
        *FLAGS,
    )
    assert run("tokens", *words) == 0
    settings = BuildSettings(output=str(folder / "data"), num_buckets=4, seq_lens=[64])
    tokens = settings.open_tokens()
    store = read_store(tokens)
    held_out = choose_held_out(
        store.totals.sources, settings.validation_fraction, settings.validation_tokens
    )
    buckets = choose_buckets(settings, store.totals, held_out)
    sums = BucketSums(buckets, held_out.ids)
    with open_index(tokens, store.part_names) as index:
        for kept in iterate_kept(index, has_dropped=False):
            sums.add(*kept)
    rules = {64: instance_rule(settings, parse_vocab(vocab_file.read_bytes(), "vocab.txt"), 64)}
    parts = TokenParts(tokens, "uint16", held_out=held_out.ids)
    return Encoded(parts, store.part_names, buckets, sums.contents(), rules)


@pytest.mark.processes
def test_what_a_bucket_must_hold_is_what_its_parts_hold(encoded):
    for bucket in encoded.buckets:
        read = list(StoredDocuments(encoded.tokens, encoded.part_names, bucket))
        gathered = gather_documents(read)
        seal = seal_documents(gathered.ids, len(gathered.tokens))
        found = BucketContents(seal, len(read), sum(document.crc32 for document in read))
        assert found.checksum > 2**32
        assert encoded.contents[bucket.name] == found
        assert found.seal.documents >= 2
    total = total_seal(encoded.contents)
    assert total.documents == 120
    assert sum(each.rows for each in encoded.contents.values()) == 125


@pytest.mark.processes
def test_rows_find_their_bucket(encoded):
    held_out = encoded.tokens.held_out
    with open_index(encoded.tokens.folder, encoded.part_names) as index:
        groups = [documents for documents, *_ in iterate_kept(index, has_dropped=False)]
    finder = BucketFinder(encoded.buckets, held_out)
    for documents in groups:
        for row, place in zip(documents, finder.find(documents), strict=True):
            bucket = encoded.buckets[place]
            document = int(row["high"]).to_bytes(8, "big") + int(row["low"]).to_bytes(8, "big")
            assert bucket.first_id <= document <= bucket.last_id
            assert (bucket.split == "validation") == (document in split_ids(held_out))


KEY = b"train-00001-of-00004"


def documents_of(chunk):
    return list(unpack_documents(unpack_chunk(chunk)[1], "uint16", ""))


def without_last(chunks):
    """Chunks of which the last document of one is lost."""
    place = next(n for n, chunk in enumerate(chunks) if len(documents_of(chunk)) > 1)
    last = documents_of(chunks[place])[-1]
    size = 36 + 2 * len(last.sentence_lengths) + 2 * len(last.tokens)
    return [*chunks[:place], chunks[place][:-size], *chunks[place + 1 :]]


def renamed(chunk):
    return pack_chunk("another", bytes(unpack_chunk(chunk)[1]))


LIES = {
    "a chunk lost": lambda groups: groups[KEY][1:],
    "half of the chunks lost": lambda groups: groups[KEY][: len(groups[KEY]) // 2],
    "an empty group": lambda _: [],
    "the end of a chunk lost": lambda groups: without_last(groups[KEY]),
    "a chunk of another bucket besides": lambda groups: [
        *groups[KEY],
        renamed(groups[b"train-00002-of-00004"][0]),
    ],
    "another bucket's chunks": lambda groups: groups[b"train-00002-of-00004"],
}


@pytest.mark.processes
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_group_that_differs_ends_the_build_with_its_name(encoded, tmp_path, lie):
    with pytest.raises(
        ValueError, match=r"^bucket train-00001-of-00004: the runner delivered "
    ) as caught:
        encoded.deliver(KEY, lie(encoded.groups()), tmp_path)
    said = str(caught.value)
    assert f", expected {encoded.contents[KEY.decode()]}; the runner loses or repeats" in said
    assert "--exchange files" in said
    assert list(tmp_path.rglob("*.tar")) == []


@pytest.mark.processes
def test_a_chunk_that_comes_twice_is_named(encoded, tmp_path):
    chunks = encoded.groups()[KEY]
    part = unpack_chunk(chunks[0])[0]
    with pytest.raises(
        ValueError, match=rf"^bucket train-00001-of-00004: .* what part {part} holds of it twice"
    ):
        encoded.deliver(KEY, [*chunks, chunks[0]], tmp_path)


@pytest.mark.processes
def test_a_copy_that_is_lost_is_missed_though_its_document_is_there(encoded, tmp_path):
    """Of copies the first source's counts, so a lost one may change what is built."""
    chunks, counts = encoded.groups(), encoded.contents
    key = next(
        key for key in chunks if counts[key.decode()].rows > counts[key.decode()].seal.documents
    )
    ids = [{document.id for document in documents_of(chunk)} for chunk in chunks[key]]
    others = [set().union(*ids[:place], *ids[place + 1 :]) for place in range(len(ids))]
    lost = next(
        place for place, own in enumerate(ids) if own <= others[place]
    )  # in whatever order parts come
    with pytest.raises(ValueError, match=f"bucket {key.decode()}: the runner delivered"):
        encoded.deliver(key, chunks[key][:lost] + chunks[key][lost + 1 :], tmp_path)


@pytest.mark.processes
def test_a_group_in_another_order_or_delivered_again_builds_the_same(encoded, tmp_path):
    chunks = encoded.groups()[KEY]
    names = encoded.deliver(KEY, chunks, tmp_path / "one")
    assert len(names) == 2
    before = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*.*") if path.is_file()
    }
    assert encoded.deliver(KEY, chunks, tmp_path / "one") == names  # as where a bundle is run again
    assert {path: path.stat().st_mtime_ns for path in before} == before, "nothing is built twice"
    random.Random(1).shuffle(chunks)
    assert encoded.deliver(KEY, chunks, tmp_path / "two") == names
    for path in before:
        assert (
            path.read_bytes()
            == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()
        )


@pytest.mark.processes
def test_the_second_half_of_a_group_is_looked_at_though_its_shards_are_there(encoded, tmp_path):
    chunks = encoded.groups()[KEY]
    encoded.deliver(KEY, chunks, tmp_path)
    with pytest.raises(ValueError, match=r"^bucket train-00001-of-00004: the runner delivered"):
        encoded.deliver(KEY, chunks[1:], tmp_path)


@pytest.mark.processes
def test_a_document_that_another_run_encoded_to_as_many_tokens_is_missed(encoded, tmp_path):
    """Equal ids and numbers of tokens, as of another vocabulary; its checksum is right."""
    first, *others = encoded.groups()[KEY]
    part, documents = unpack_chunk(first)[0], documents_of(first)
    documents[0] = dataclasses.replace(documents[0], tokens=documents[0].tokens[::-1])
    with pytest.raises(
        ValueError,
        match=r"^bucket train-00001-of-00004: the runner delivered .* rows \(sum of crc32",
    ):
        encoded.deliver(KEY, [pack_chunk(part, pack_documents(documents)[0]), *others], tmp_path)


@pytest.mark.processes
def test_tokens_that_end_before_their_index_says_are_named(encoded, tmp_path):
    shutil.copytree(encoded.tokens.folder.path, tmp_path / "tokens")
    path = tmp_path / f"tokens/{encoded.part_names[0]}.tokens"
    path.write_bytes(path.read_bytes()[:-5])
    tokens = dataclasses.replace(encoded.tokens, folder=Folder(str(tmp_path / "tokens")))
    said = rf"{encoded.part_names[0]}.tokens: asked for bytes \S+, got .*: shorter than its index says; delete the"
    with pytest.raises(ValueError, match=said):
        list(cut_part(encoded.part_names[0], tokens, encoded.buckets))
    path.unlink()
    with pytest.raises(
        ValueError, match=rf"{encoded.part_names[0]}.tokens is missing; delete the folder of token"
    ):
        list(cut_part(encoded.part_names[0], tokens, encoded.buckets))
    path.with_name("prefixes.rows").unlink()
    with pytest.raises(
        ValueError, match=r"prefixes\.rows is missing; delete the folder of token parts"
    ):
        list(StoredDocuments(tokens, encoded.part_names, encoded.buckets[1]))


@pytest.mark.processes
def test_a_group_that_nothing_is_built_of_is_named(encoded, tmp_path):
    with pytest.raises(
        ValueError, match="delivered a bucket train-00001-of-00008 that no shard is built of"
    ):
        encoded.deliver(b"train-00001-of-00008", [], tmp_path)


def test_two_groups_of_one_bucket_are_refused():
    refuse_repeats(b"train/L64/pass-00/shard-00001.tar", [KEY])
    with pytest.raises(
        ValueError,
        match=r"^bucket train-00001-of-00004: the runner delivered it 2 times for train/L64/pass-00/shard-0",
    ):
        refuse_repeats(b"train/L64/pass-00/shard-00001.tar", iter([KEY, KEY]))


@pytest.mark.processes
def test_parts_and_index_of_different_runs_are_refused(encoded, tmp_path):
    shutil.copytree(encoded.tokens.folder.path, tmp_path / "tokens")
    tokens = dataclasses.replace(encoded.tokens, folder=Folder(str(tmp_path / "tokens")))
    task = encoded.tasks(KEY.decode())[0]
    stored = StoredDocuments(tokens, encoded.part_names, task.bucket)
    builder = ShardBuilder(Folder(str(tmp_path / "data")), encoded.rules, 1, HASH)
    shorter = dataclasses.replace(
        task, contents=dataclasses.replace(task.contents, rows=task.contents.rows - 1)
    )
    with pytest.raises(
        ValueError, match=r"^bucket train-00001-of-00004: the token parts in \S+ hold .*, expected"
    ):
        list(builder.build([shorter], stored))
    assert list(builder.build([task], stored)) == [(task.bucket.name, task.name)]


# Records.


def write_one(encoded, output):
    task = encoded.tasks(KEY.decode())[0]
    encoded.deliver(KEY, encoded.groups()[KEY], output)
    return task, output / task.name, output / record_name(task.name)


OTHERS = {
    "of other documents": lambda record: dataclasses.replace(
        record, shard=dataclasses.replace(record.shard, seal=NOTHING)
    ),
    "of other settings": lambda record: dataclasses.replace(record, settings_hash="1" * 64),
    "of another shard": lambda record: dataclasses.replace(
        record, shard=dataclasses.replace(record.shard, name="train/L64/pass-00/shard-00002.tar")
    ),
}


@pytest.mark.processes
@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_a_record_counts_for_its_own_task_alone(encoded, tmp_path, change):
    _, shard, record = write_one(encoded, tmp_path)
    sound, tar = record.read_bytes(), shard.read_bytes()
    record.write_bytes(format_record(change(parse_record(sound))))
    shard.write_bytes(b"of whatever the record tells" + tar[28:])
    encoded.deliver(KEY, encoded.groups()[KEY], tmp_path)
    assert (record.read_bytes(), shard.read_bytes()) == (sound, tar)


@pytest.mark.processes
@pytest.mark.parametrize("spoil", [lambda shard, _: shard.unlink(), lambda shard, _: shard.write_bytes(b"cut"),
                                   lambda _, record: record.write_bytes(record.read_bytes()[:50]),
                                   lambda _, record: record.unlink()])  # fmt: skip
def test_a_record_without_its_shard_and_a_shard_without_its_record_are_built_again(
    encoded, tmp_path, spoil
):
    _, shard, record = write_one(encoded, tmp_path)
    before = record.read_bytes(), shard.read_bytes()
    spoil(shard, record)
    encoded.deliver(KEY, encoded.groups()[KEY], tmp_path)
    assert (record.read_bytes(), shard.read_bytes()) == before


@pytest.mark.processes
def test_the_record_comes_after_its_shard(encoded, tmp_path, monkeypatch):
    """A kill between the two leaves a shard without a record, never a record without a shard."""
    written = []
    write = Folder.write

    def write_one_file(folder, name, data):
        if written:
            raise OSError("the disk is full")
        written.append(Path(name).suffix)
        write(folder, name, data)

    monkeypatch.setattr(Folder, "write", write_one_file)
    with pytest.raises(OSError, match="full"):
        encoded.deliver(KEY, encoded.groups()[KEY], tmp_path)
    assert written == [".tar"]
    assert list(tmp_path.rglob("*.json")) == []


# Whole builds.


@pytest.fixture(scope="module")
def built(corpus, vocab_file, tmp_path_factory):
    output = tmp_path_factory.mktemp("sealed") / "data"
    assert run("build", "--input", corpus, "--output", output, "--vocab", vocab_file, *FLAGS) == 0
    return open_dataset(str(output))


@pytest.fixture
def copy(built, tmp_path):
    shutil.copytree(built.folder.path, tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.processes
def test_every_pass_holds_every_document_once(built, capsys):
    train = [shard for shard in built.all_shards if shard.split == "train"]
    assert {shard.name[-9:-4]: shard.seal for shard in train if shard.pass_index == 0} == {
        shard.name[-9:-4]: shard.seal for shard in train if shard.pass_index == 1
    }
    assert built.manifest.seal.documents == built.manifest.counters["documents"] == 120
    assert built.manifest.seal.tokens == built.manifest.counters["distinct_tokens"]
    assert pass_seals(built.all_shards) == {
        (64, 0): built.manifest.seal,
        (64, 1): built.manifest.seal,
    }
    ids = built.read_file("documents.ids")
    assert (
        seal_documents([ids[n : n + 16] for n in range(0, len(ids), 16)], 0).ids_xor
        == built.manifest.seal.ids_xor
    )
    capsys.readouterr()
    assert run("verify", built.url) == 0
    said = "every one of 120 documents is in exactly one bucket of each of 2 pass(es) at length 64"
    assert f"{said}\n" in capsys.readouterr().out
    assert run("report", built.url) == 0
    assert f"ok    Coverage: {said}\n" in capsys.readouterr().out


@pytest.mark.processes
def test_a_mixture_is_covered_whatever_its_weights(mixture, capsys):
    assert verify_dataset(mixture) == []
    assert describe_coverage(mixture.manifest, mixture.all_shards).endswith(
        "each of 2 pass(es) at length 64; how often a pass uses it, the weight of its source says"
    )


@pytest.mark.processes
def test_rows_of_shards_come_back_with_their_seals(built):
    data = built.read_file("shards.parquet")
    rows = parse_shards_table(data, "here")
    assert rows == list(built.all_shards)
    assert shards_table(rows) == data


CHANGES = {
    "a document fewer": {"documents": 119},
    "tokens of another run": {"tokens": 7},
    "another document": {"ids_xor": "0" * 31 + "1"},
}


@pytest.mark.processes
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_verify_adds_up_seals(built, change, split):
    [place] = [
        n
        for n, shard in enumerate(built.all_shards)
        if shard.split == split and shard.pass_index == 0
    ][:1]
    rows = list(built.all_shards)
    rows[place] = dataclasses.replace(
        rows[place], seal=dataclasses.replace(rows[place].seal, **change)
    )
    found = [where for where, _ in find_uncovered(built.manifest, rows)]
    assert found == ([(64, 0)] if split == "train" else [(64, 0), (64, 1)])
    assert list(find_uncovered(built.manifest, built.all_shards)) == []


@pytest.mark.processes
def test_verify_and_report_name_the_pass_that_lacks_documents(copy, capsys):
    seal = json.loads((copy / "manifest.json").read_text())["seal"]
    edit_manifest(copy, seal=seal | {"documents": 121})
    assert run("verify", copy) == 2
    said = capsys.readouterr().out
    assert (
        f"{copy}/train/L64/pass-01: its shards and those of validation hold 120 documents" in said
    )
    assert "the manifest says 121 documents" in said
    assert (
        f"{copy}/documents.ids: 120 documents (xor of ids {seal['ids_xor']}), the manifest's"
        in said
    )
    (copy / "report.json").unlink()
    assert run("report", copy) == 0
    assert (
        "LOOK  Coverage: train/L64/pass-00: its shards and those of validation hold 120"
        in capsys.readouterr().out
    )
    assert "worth a look" in (copy / "report.html").read_text()


@pytest.mark.processes
def test_an_index_of_other_documents_is_refused_before_anything_is_built(
    corpus, vocab_file, copy, capsys
):
    for name in ("manifest.json", "shards.parquet", "documents.ids"):
        (copy / name).unlink()
    index = max((copy / "tokens").glob("*.index"), key=lambda path: path.stat().st_size)
    data = bytearray(index.read_bytes())
    data[4 * 257 + 36] ^= 1  # tokens of the first document
    index.write_bytes(data)
    assert run("shards", "--output", copy, *FLAGS) == 2
    said = capsys.readouterr().err
    assert f"{copy}/tokens: the index of its parts tells of documents of hash" in said
    assert "delete that folder and run again" in said
    assert not (copy / "documents.ids").exists()


@pytest.mark.processes
def test_record_round_trip(built):
    shard = built.all_shards[0]
    record = ShardRecord(HASH, shard, built.blocks(shard))
    again = parse_record(format_record(record))
    assert (again.settings_hash, again.shard) == (HASH, shard)
    assert again.blocks.offset.tolist() == record.blocks.offset.tolist()
