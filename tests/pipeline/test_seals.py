"""Seals: every document is in one bucket of every pass; what differs ends the build."""

import dataclasses
import shutil
from pathlib import Path

import pytest

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
from pipeline.shards.seal import NOTHING, Seal, add_seals, seal_documents
from pipeline.shards.verify import describe_coverage, find_uncovered, pass_seals, verify_dataset
from pipeline.stages.build_shards import choose_buckets, instance_rule
from pipeline.stages.build_tokens import read_store
from pipeline.storage.folder import Folder
from pipeline.tokens.buckets import BucketContents, BucketSums, total_seal
from pipeline.tokens.grouped_rows import HEAD_BYTES
from pipeline.tokens.held_out import choose_held_out
from pipeline.tokens.token_index import PREFIX_DTYPE, TokenParts, iterate_kept, open_index
from pipeline.tokens.token_parts import pack_documents, unpack_documents
from tests.datasets import edit_manifest
from tests.pipeline.programs import run, write_texts
from tokenizer.vocab import parse_vocab

FLAGS = ("--passes", 2, "--seq_lens", 64, "--num_buckets", 4, "--part_bytes", 4096, "--workers", 1)
HASH = "0" * 64
KEY, NEXT = b"train-00001-of-00004", b"train-00002-of-00004"
OTHER = "^bucket train-00001-of-00004: the runner delivered "
pytestmark = pytest.mark.processes


def test_a_seal_by_hand():
    ids = [bytes.fromhex(each) for each in ("0f" * 16, "f1" + "00" * 15, "01" + "ff" * 15)]
    assert seal_documents(ids, 90) == Seal(3, 90, "ff" + "f0" * 15)
    assert seal_documents([], 0) == NOTHING
    parts = [seal_documents(ids[:1], 40), seal_documents(ids[1:], 50)]
    assert add_seals(parts) == Seal(3, 90, "ff" + "f0" * 15)


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Encoded documents, with five copies, and what their buckets must hold."""

    tokens: TokenParts
    part_names: tuple
    buckets: list
    contents: dict
    rules: dict

    def first_task(self):
        tasks = plan_tasks(self.buckets, [64], 2, self.contents)
        return next(task for task in tasks if task.bucket.name == KEY.decode())

    def groups(self):
        """What a runner that keeps its promises delivers."""
        found = {}
        for part in self.part_names:
            for key, chunk in cut_part(part, self.tokens, self.buckets):
                found.setdefault(key, []).append(chunk)
        return found

    def deliver(self, key, chunks, output):
        """Builds a bucket of what a runner delivered."""
        output, tasks = Folder(str(output)), plan_tasks(self.buckets, [64], 2, self.contents)
        sent = broadcast(group_tasks(tasks), output)
        found, documents = unpack_group((key, chunks), self.tokens, sent)
        return list(ShardBuilder(output, self.rules, 1, HASH).build(found, documents))


@pytest.fixture(scope="module")
def encoded(corpus, texts, vocab_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoded")
    write_texts(folder / "copies.jsonl", texts[:40:8])
    words = ("--input", corpus, folder / "copies.jsonl", "--vocab", vocab_file)
    assert run("tokens", *words, "--output", folder / "data", *FLAGS) == 0
    settings = BuildSettings(output=str(folder / "data"), num_buckets=4, seq_lens=[64])
    tokens = settings.open_tokens()
    store = read_store(tokens)
    share = settings.validation_fraction, settings.validation_tokens
    held_out = choose_held_out(store.totals.sources, *share)
    buckets = choose_buckets(settings, store.totals, held_out)
    sums = BucketSums(buckets, held_out.ids)
    with open_index(tokens, store.part_names) as index:
        for kept in iterate_kept(index, has_dropped=False):
            sums.add(*kept)
    rules = {64: instance_rule(settings, parse_vocab(vocab_file.read_bytes(), "vocab.txt"), 64)}
    parts = TokenParts(tokens, "uint16", held_out=held_out.ids)
    return Encoded(parts, store.part_names, buckets, sums.contents(), rules)


def test_what_a_bucket_must_hold_is_what_its_parts_hold(encoded):
    for bucket in encoded.buckets:
        read = list(StoredDocuments(encoded.tokens, encoded.part_names, bucket))
        gathered = gather_documents(read)
        seal = seal_documents(gathered.ids, len(gathered.tokens))
        found = BucketContents(seal, len(read), sum(document.crc32 for document in read))
        assert encoded.contents[bucket.name] == found
    assert total_seal(encoded.contents).documents == 120
    assert sum(each.rows for each in encoded.contents.values()) == 125


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


def encoded_otherwise(chunks):
    """Equal ids and numbers of tokens, as of another vocabulary, with a checksum that is right."""
    part, documents = unpack_chunk(chunks[0])[0], documents_of(chunks[0])
    documents[0] = dataclasses.replace(documents[0], tokens=documents[0].tokens[::-1])
    return [pack_chunk(part, pack_documents(documents)[0]), *chunks[1:]]


LIES = {
    "a chunk lost": lambda groups: groups[KEY][1:],
    "an empty group": lambda _: [],
    "the end of a chunk lost": lambda groups: without_last(groups[KEY]),
    "a chunk of another bucket besides": lambda groups: [*groups[KEY], renamed(groups[NEXT][0])],
    "another bucket's chunks": lambda groups: groups[NEXT],
    "a document of another run": lambda groups: encoded_otherwise(groups[KEY]),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_group_that_differs_ends_the_build_with_its_name(encoded, tmp_path, lie):
    with pytest.raises(ValueError, match=OTHER) as caught:
        encoded.deliver(KEY, lie(encoded.groups()), tmp_path)
    said = str(caught.value)
    assert f", expected {encoded.contents[KEY.decode()]}; the runner loses or repeats" in said
    assert "--exchange files" in said
    assert list(tmp_path.rglob("*.tar")) == []


def test_a_chunk_that_comes_twice_is_named(encoded, tmp_path):
    chunks = encoded.groups()[KEY]
    part = unpack_chunk(chunks[0])[0]
    with pytest.raises(ValueError, match=f"{OTHER}what part {part} holds of it twice"):
        encoded.deliver(KEY, [*chunks, chunks[0]], tmp_path)


def test_a_copy_that_is_lost_is_missed_though_its_document_is_there(encoded, tmp_path):
    """Of copies the first source's counts, so a lost one may change what is built."""
    chunks, counts = encoded.groups(), encoded.contents
    own = {key: counts[key.decode()] for key in chunks}
    key = next(key for key, each in own.items() if each.rows > each.seal.documents)
    ids = [{document.id for document in documents_of(chunk)} for chunk in chunks[key]]
    others = [set().union(*ids[:place], *ids[place + 1 :]) for place in range(len(ids))]
    lost = next(place for place, own in enumerate(ids) if own <= others[place])
    with pytest.raises(ValueError, match=f"bucket {key.decode()}: the runner delivered"):
        encoded.deliver(key, chunks[key][:lost] + chunks[key][lost + 1 :], tmp_path)


def test_a_group_in_another_order_or_delivered_again_builds_the_same(encoded, tmp_path):
    chunks = encoded.groups()[KEY]
    names = encoded.deliver(KEY, chunks, tmp_path / "one")
    assert len(names) == 2
    files = [path for path in (tmp_path / "one").rglob("*.*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert encoded.deliver(KEY, chunks, tmp_path / "one") == names  # as where a bundle is run again
    assert {path: path.stat().st_mtime_ns for path in before} == before, "nothing is built twice"
    assert encoded.deliver(KEY, chunks[::-1], tmp_path / "two") == names
    for path in files:
        other = tmp_path / "two" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == other.read_bytes()
    with pytest.raises(ValueError, match=OTHER):  # though its shards are there
        encoded.deliver(KEY, chunks[1:], tmp_path / "one")


def test_tokens_that_end_before_their_index_says_are_named(encoded, tmp_path):
    shutil.copytree(encoded.tokens.folder.path, tmp_path / "tokens")
    tokens = dataclasses.replace(encoded.tokens, folder=Folder(str(tmp_path / "tokens")))
    part = encoded.part_names[0]
    path = tmp_path / f"tokens/{part}.tokens"
    path.write_bytes(path.read_bytes()[:-5])
    said = rf"{part}.tokens: asked for bytes \S+, got .*: it is shorter than its index says, or"
    with pytest.raises(ValueError, match=said):
        list(cut_part(part, tokens, encoded.buckets))
    path.unlink()
    said = "is missing; delete the folder of token parts"
    with pytest.raises(ValueError, match=rf"{part}.tokens {said}"):
        list(cut_part(part, tokens, encoded.buckets))
    path.with_name("prefixes.rows").unlink()
    with pytest.raises(ValueError, match=rf"prefixes\.rows {said}"):
        list(StoredDocuments(tokens, encoded.part_names, encoded.buckets[1]))


def test_a_bit_of_the_ranges_that_was_flipped_is_told_as_a_users_fault(encoded, tmp_path):
    """Whatever range it names; a size asks for no memory that the file does not fill."""
    shutil.copytree(encoded.tokens.folder.path, tmp_path / "tokens")
    tokens = dataclasses.replace(encoded.tokens, folder=Folder(str(tmp_path / "tokens")))
    path = tmp_path / "tokens/prefixes.rows"
    data = path.read_bytes()
    refused = 0
    for position in range(HEAD_BYTES, min(len(data), HEAD_BYTES + 3 * PREFIX_DTYPE.itemsize)):
        for bit in (0x01, 0x40, 0x80):
            changed = bytearray(data)
            changed[position] ^= bit
            path.write_bytes(changed)
            for bucket in encoded.buckets:
                try:
                    list(StoredDocuments(tokens, encoded.part_names, bucket))
                except ValueError as error:
                    assert "delete the folder of token parts" in str(error)  # noqa: PT017
                    refused += 1
    assert refused > 50


def test_a_group_that_nothing_is_built_of_and_two_of_one_bucket_are_refused(encoded, tmp_path):
    said = "delivered a bucket train-00001-of-00008 that no shard is built of"
    with pytest.raises(ValueError, match=said):
        encoded.deliver(b"train-00001-of-00008", [], tmp_path)
    shard = b"train/L64/pass-00/shard-00001.tar"
    refuse_repeats(shard, [KEY])
    with pytest.raises(ValueError, match=f"{OTHER}it 2 times for {shard.decode()}"):
        refuse_repeats(shard, iter([KEY, KEY]))


def test_parts_and_index_of_different_runs_are_refused(encoded, tmp_path):
    task = encoded.first_task()
    stored = StoredDocuments(encoded.tokens, encoded.part_names, task.bucket)
    builder = ShardBuilder(Folder(str(tmp_path)), encoded.rules, 1, HASH)
    contents = dataclasses.replace(task.contents, rows=task.contents.rows - 1)
    shorter = dataclasses.replace(task, contents=contents)
    said = r"^bucket train-00001-of-00004: the token parts in \S+ hold .*, expected"
    with pytest.raises(ValueError, match=said):
        list(builder.build([shorter], stored))
    assert list(builder.build([task], stored)) == [(task.bucket.name, task.name)]


def tell(shard, record, settings_hash=HASH, **changes):
    """A record of something else, and a shard that is not the one it was."""
    own = parse_record(record.read_bytes())
    other = dataclasses.replace(own.shard, **changes)
    record.write_bytes(format_record(ShardRecord(settings_hash, other, own.blocks)))
    shard.write_bytes(b"of whatever the record tells" + shard.read_bytes()[28:])


SPOILT = {
    "a shard lost": lambda shard, _: shard.unlink(),
    "a record lost": lambda _, record: record.unlink(),
    "a shard cut": lambda shard, _: shard.write_bytes(shard.read_bytes()[:50]),
    "a record cut": lambda _, record: record.write_bytes(record.read_bytes()[:50]),
    "a record of other documents": lambda *both: tell(*both, seal=NOTHING),
    "a record of other settings": lambda *both: tell(*both, "1" * 64),
    "a record of another": lambda *both: tell(*both, name="train/L64/pass-00/shard-00002.tar"),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_what_is_lost_cut_or_of_something_else_is_built_again(encoded, tmp_path, spoil):
    encoded.deliver(KEY, encoded.groups()[KEY], tmp_path)
    name = encoded.first_task().name
    shard, record = tmp_path / name, tmp_path / record_name(name)
    before = shard.read_bytes(), record.read_bytes()
    spoil(shard, record)
    encoded.deliver(KEY, encoded.groups()[KEY], tmp_path)
    assert (shard.read_bytes(), record.read_bytes()) == before


def test_the_record_comes_after_its_shard(encoded, tmp_path, monkeypatch):
    """A kill between the two leaves a shard without a record, never a record without a shard."""
    written, write = [], Folder.write

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


@pytest.fixture(scope="module")
def built(corpus, vocab_file, tmp_path_factory):
    output = tmp_path_factory.mktemp("sealed") / "data"
    assert run("build", "--input", corpus, "--output", output, "--vocab", vocab_file, *FLAGS) == 0
    return open_dataset(str(output))


@pytest.fixture
def copy(built, tmp_path):
    return Path(shutil.copytree(built.folder.path, tmp_path / "data"))


def test_every_pass_holds_every_document_once(built, capsys):
    train = [shard for shard in built.all_shards if shard.split == "train"]
    first, second = ([each.seal for each in train if each.pass_index == n] for n in (0, 1))
    assert first == second
    seal, counters = built.manifest.seal, built.manifest.counters
    assert seal.documents == counters["documents"] == 120
    assert seal.tokens == counters["distinct_tokens"]
    assert pass_seals(built.all_shards) == {(64, 0): seal, (64, 1): seal}
    ids = built.read_file("documents.ids")
    ids = [ids[n : n + 16] for n in range(0, len(ids), 16)]
    assert seal_documents(ids, seal.tokens) == seal
    assert run("verify", built.url) == 0
    said = "every one of 120 documents is in exactly one bucket of each of 2 pass(es) at length 64"
    assert f"{said}\n" in capsys.readouterr().out
    assert run("report", built.url) == 0
    assert f"ok    Coverage: {said}\n" in capsys.readouterr().out


def test_a_mixture_is_covered_whatever_its_weights(mixture, capsys):
    assert verify_dataset(mixture) == []
    said = (
        "each of 2 pass(es) at length 64; how often a pass uses it, the weight of its source says"
    )
    assert describe_coverage(mixture.manifest, mixture.all_shards).endswith(said)


@pytest.mark.parametrize("change", [{"documents": 119}, {"tokens": 7}, {"ids_xor": "0" * 31 + "1"}])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_verify_adds_up_seals(built, change, split):
    rows = list(built.all_shards)
    place = [(shard.split, shard.pass_index) for shard in rows].index((split, 0))
    seal = dataclasses.replace(rows[place].seal, **change)
    rows[place] = dataclasses.replace(rows[place], seal=seal)
    found = [where for where, _ in find_uncovered(built.manifest, rows)]
    assert found == ([(64, 0)] if split == "train" else [(64, 0), (64, 1)])
    assert list(find_uncovered(built.manifest, built.all_shards)) == []


def test_verify_and_report_name_the_pass_that_lacks_documents(built, copy, capsys):
    edit_manifest(copy, lambda fields: fields["seal"].update(documents=121))
    assert run("verify", copy) == 2
    said = capsys.readouterr().out
    hold = "its shards and those of validation hold 120 documents"
    assert f"{copy}/train/L64/pass-01: {hold}" in said
    assert "the manifest says 121 documents" in said
    ids = f"120 documents (xor of ids {built.manifest.seal.ids_xor}), the manifest's"
    assert f"{copy}/documents.ids: {ids}" in said
    (copy / "report.json").unlink()
    assert run("report", copy) == 0
    assert f"LOOK  Coverage: train/L64/pass-00: {hold}" in capsys.readouterr().out
    assert "worth a look" in (copy / "report.html").read_text()


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
