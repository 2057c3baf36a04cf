"""Buckets come together through files and through Beam's shuffle: same documents, same shards."""

import pickle
import shutil
from collections import defaultdict
from dataclasses import replace

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.coders import BytesCoder, TupleCoder
from apache_beam.runners.pipeline_context import PipelineContext

from pipeline.instances.build_bucket import gather_documents
from pipeline.jobs import broadcast
from pipeline.jobs.exchange import (
    ExchangeByBucket,
    cut_part,
    group_tasks,
    plan_tasks,
    refuse_large_groups,
    unpack_chunk,
)
from pipeline.jobs.run_beam import choose_exchange, pipeline_options
from pipeline.shards.dataset import open_dataset
from pipeline.shards.seal import NOTHING
from pipeline.stages import build_shards
from pipeline.storage.folder import Folder
from pipeline.tokens.buckets import BucketContents, plan_buckets
from pipeline.tokens.token_index import TokenParts, build_index, open_index, read_bucket
from pipeline.tokens.token_parts import TokenizedDocument, pack_documents, unpack_documents
from tests.counting import empty_store
from tests.pipeline.programs import run


def make_document(number):
    lengths = np.array([1 + number % 5, 2], np.uint16)
    tokens = np.arange(number, number + int(lengths.sum())).astype(np.uint16)
    return TokenizedDocument((number * 2**120 + number).to_bytes(16, "big"), 10, lengths, tokens)


@pytest.fixture
def folder(tmp_path):
    """Document n's id begins with byte n; 200 to 209 are in two parts."""
    folder = Folder(str(tmp_path))
    numbers = {"one": range(210), "two": range(200, 256), "none": range(0)}
    for name in NAMES:
        tokens, index = pack_documents(list(map(make_document, numbers[name])))
        folder.write(f"{name}.tokens", tokens)
        folder.write(f"{name}.index", index)
    with open_index(folder, NAMES) as index:
        build_index(index)
    return TokenParts(folder, "uint16")


def numbers_in(chunk):
    return [each.id[0] for each in unpack_documents(unpack_chunk(chunk)[1], np.uint16, "chunk")]


NAMES = ["one", "two", "none"]
NOT_COUNTED = defaultdict(lambda: BucketContents(NOTHING, 0, 0))
HELD_OUT = b"".join(make_document(number).id for number in (*range(10), 70, 205))


def test_a_part_is_cut_at_the_bounds_of_the_buckets_and_around_what_is_held_out(folder):
    folder = replace(folder, held_out=HELD_OUT)
    buckets = plan_buckets(4, HELD_OUT)
    found = {name.decode(): numbers_in(data) for name, data in cut_part("one", folder, buckets)}
    assert found == {
        "validation-00000-of-00001": [*range(10), 70, 205],
        "train-00000-of-00004": list(range(10, 64)),
        "train-00001-of-00004": [*range(64, 70), *range(71, 128)],
        "train-00002-of-00004": list(range(128, 192)),
        "train-00003-of-00004": [*range(192, 205), *range(206, 210)],
    }
    assert list(cut_part("none", folder, buckets)) == []
    for some, expected in ((slice(1, 3), []), (slice(4, None), [4]), (slice(1), [0])):
        names = [name.decode() for name, _ in cut_part("two", folder, buckets[some])]
        assert names == [buckets[place].name for place in expected]


def test_a_part_is_read_by_three_requests_however_many_buckets_it_is_cut_into(folder):
    store = empty_store()
    elsewhere = Folder("counted://parts")
    for name, data in folder.folder.read_many(list(folder.folder.list())).items():
        elsewhere.write(name, data)
    store.requests.clear()
    tokens = replace(folder, folder=elsewhere, held_out=HELD_OUT)
    buckets = plan_buckets(64, HELD_OUT)
    assert [len(list(cut_part(name, tokens, buckets))) for name in NAMES] == [52, 15, 0]
    # The size and bytes of each index, the bytes of tokens.
    assert store.kinds() == {"size": 3, "cat_file": 5}
    assert store.count("cat_file", ".tokens") == 2


def test_gathered_documents_are_sorted_and_copies_dropped():
    documents = [make_document(number) for number in (7, 3, 7, 200)]
    gathered = gather_documents(documents)
    assert [each[0] for each in gathered.ids] == [3, 7, 200]
    assert gathered.sentence_lengths.tolist() == [4, 2, 3, 2, 1, 2]
    assert gathered.sentence_offsets.tolist() == [0, 2, 4, 6]
    assert gathered.tokens.tolist() == [*range(3, 9), *range(7, 12), *range(200, 203)]


@pytest.mark.parametrize("most_inline", [0, broadcast.MAX_INLINE_BYTES])
@pytest.mark.parametrize("mode", ["files", "shuffle"])
def test_both_modes_bring_the_same_documents(folder, mode, most_inline, tmp_path, monkeypatch):
    monkeypatch.setattr(broadcast, "MAX_INLINE_BYTES", most_inline)
    folder = replace(folder, held_out=HELD_OUT)
    tasks = plan_tasks(plan_buckets(4, HELD_OUT), [64], 1, NOT_COUNTED)

    def write(work):
        tasks, documents = work
        once, again = ([document.id.hex() for document in documents] for _ in range(2))
        assert once == again
        (tmp_path / tasks[0].bucket.name).write_text("\n".join(sorted(once)))

    with beam.Pipeline(options=pipeline_options(1, [], 4)) as pipeline:
        exchange = ExchangeByBucket(mode, folder, NAMES, tasks, Folder(str(tmp_path)))
        _ = pipeline | exchange | beam.Map(write)
    assert len(list(tmp_path.glob("broadcast-*.json"))) == (0 if most_inline else 2)
    found = {each.bucket.name: (tmp_path / each.bucket.name).read_text().split() for each in tasks}
    for task in tasks:
        expected = read_bucket(folder, NAMES, task.bucket)
        assert found[task.bucket.name] == sorted(document.id.hex() for document in expected)
    numbers = [int(each[:2], 16) for each in found["validation-00000-of-00001"]]
    assert numbers == [*range(10), 70, 205, 205], "the copy too"


def test_the_shuffle_moves_bytes_under_deterministic_keys(folder):
    tasks = plan_tasks(plan_buckets(4, b""), [64], 1, NOT_COUNTED)
    pipeline = beam.Pipeline(options=pipeline_options(1, [], 4))
    _ = pipeline | ExchangeByBucket("shuffle", folder, ["one"], tasks, folder.folder)
    proto = pipeline.to_runner_api()
    context = PipelineContext(proto.components)
    names = {each.unique_name: each for each in proto.components.transforms.values()}
    [group] = [
        names[each] for each in names if each.endswith("/GroupByKey") and "Reshuffle" not in each
    ]
    [source] = group.inputs.values()
    coder = context.coders[proto.components.pcollections[source].coder_id]
    assert coder == TupleCoder([BytesCoder(), BytesCoder()])


@pytest.mark.parametrize("mode", ["files", "shuffle"])
def test_a_jobs_description_does_not_grow_with_parts_and_shards(folder, mode, tmp_path):
    """Of a terabyte's numbers of parts, buckets and shards."""
    names = [f"{number:032x}-00000" for number in range(31_000)]
    buckets = plan_buckets(4096, b"")
    contents = {
        each.name: BucketContents(replace(NOTHING, tokens=n), n, 2**40 + n)
        for n, each in enumerate(buckets)
    }
    tasks = plan_tasks(buckets, [128, 512], 10, contents)
    pipeline = beam.Pipeline(options=pipeline_options(1, [], 4))
    _ = pipeline | ExchangeByBucket(mode, folder, names, tasks, Folder(str(tmp_path)))
    assert pipeline.to_runner_api().ByteSize() < 3 * broadcast.MAX_INLINE_BYTES
    sent = sum(path.stat().st_size for path in tmp_path.glob("broadcast-*"))
    assert sent > broadcast.MAX_INLINE_BYTES


def test_a_group_that_no_worker_carries_is_refused_before_the_shuffle():
    buckets = plan_buckets(2, b"")
    small = BucketContents(replace(NOTHING, documents=100, tokens=10**6), 100, 0)
    for contents in (
        BucketContents(replace(NOTHING, documents=100, tokens=300 * 10**6), 100, 0),  # few buckets
        BucketContents(replace(NOTHING, documents=100, tokens=10**6), 30_000, 0),  # many copies
    ):
        tasks = plan_tasks(buckets, [64], 1, {buckets[0].name: small, buckets[1].name: contents})
        refuse_large_groups(tasks[:1], "uint16")
        said = r"train-00001-of-00002 is 600 MB of tokens .* takes its worker some 1.2 GB"
        with pytest.raises(ValueError, match=said):
            refuse_large_groups(tasks, "uint16")


def test_a_broadcast_comes_back_as_it_was_and_by_its_hash_alone(tmp_path, monkeypatch):
    """No worker runs code of a file that somebody exchanged."""
    monkeypatch.setattr(broadcast, "MAX_INLINE_BYTES", 0)
    folder = Folder(str(tmp_path))
    buckets = group_tasks(plan_tasks(plan_buckets(4096, b""), [64], 9, NOT_COUNTED))
    sent = broadcast.broadcast(buckets, folder)
    assert len(pickle.dumps(sent)) < 500
    assert pickle.loads(pickle.dumps(sent)).get() == buckets
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes().replace(b"train", b"other", 1))
    broadcast._unpack.cache_clear()
    with pytest.raises(ValueError, match=r"broadcast-\w+.json is not what this job wrote there"):
        sent.get()


@pytest.mark.processes
def test_both_modes_give_one_root_hash_and_heal_each_others_builds(corpus, vocab_file, tmp_path):
    (tmp_path / "more").mkdir()
    shutil.copy(corpus / "a.jsonl", tmp_path / "more/copies.jsonl")
    lengths = ("--passes", 2, "--seq_lens", 64, 128, "--num_buckets", 4, "--part_bytes", 4096)
    words = ("--input", corpus, tmp_path / "more", "--vocab", vocab_file, *lengths)
    hashes = set()
    for name, workers in (("files", 1), ("shuffle", 2)):
        output = tmp_path / f"{name}{workers}"
        flags = ("--exchange", name, "--workers", workers)
        assert run("build", *words, "--output", output, *flags) == 0
        dataset = open_dataset(str(output))
        assert dataset.manifest.counters["dropped_duplicate"] == 70
        hashes.add(dataset.manifest.root_hash)
        assert len(dataset.shards("train", 64, 0)) == 4
    assert len(hashes) == 1
    for lost in dataset.all_shards[::3]:
        (output / lost.name).unlink()
    (output / "manifest.json").unlink()
    assert run("build", *words, "--output", output, "--exchange", "files", "--workers", 1) == 0
    assert {open_dataset(str(output)).manifest.root_hash} == hashes


@pytest.mark.processes
def test_a_build_killed_after_its_last_shard_needs_no_job(
    corpus, vocab_file, tmp_path, monkeypatch
):
    flags = ("--vocab", vocab_file, "--seq_lens", 64, "--workers", 1, "--exchange", "shuffle")
    words = ("build", "--input", corpus, "--output", tmp_path / "data", *flags)
    with monkeypatch.context() as patch:
        patch.setattr(build_shards, "publish_dataset", None)
        with pytest.raises(TypeError):
            run(*words)
    assert run(*words) == 0
    assert open_dataset(str(tmp_path / "data")).all_shards


def test_auto_is_shuffle_on_dataflow_and_files_where_a_group_is_held_in_memory():
    def chosen(*arguments):
        return choose_exchange("auto", pipeline_options(2, arguments, 4))

    assert chosen() == chosen("--direct_num_workers=1") == "files"
    assert chosen("--runner=DataflowRunner") == "shuffle"
    for runner in ("FlinkRunner", "SparkRunner", "PortableRunner", "PrismRunner"):
        assert chosen(f"--runner={runner}") == "files"
    assert choose_exchange("files", pipeline_options(2, ["--runner=DataflowRunner"], 4)) == "files"


def test_an_unknown_option_is_refused_by_name():
    with pytest.raises(ValueError, match="no_such_option"):
        pipeline_options(2, ["--no_such_option=1"], 4)


def test_a_runner_named_by_its_whole_class_name_brings_its_options(tmp_path, monkeypatch):
    (tmp_path / "runner_of_ours.py").write_text(
        "from apache_beam.options.pipeline_options import PipelineOptions\n"
        "class OurOptions(PipelineOptions):\n"
        "    @classmethod\n"
        "    def _add_argparse_args(cls, parser):\n"
        "        parser.add_argument('--our_address')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    options = pipeline_options(2, ["--runner=runner_of_ours.OurRunner", "--our_address=here"], 4)
    assert options.get_all_options()["our_address"] == "here"
    assert choose_exchange("auto", options) == "files"


def test_a_runner_that_is_not_installed_is_named():
    said = "the runner DaskRunner cannot be imported: No module named 'no_dask'; install"
    with pytest.raises(ValueError, match=said):
        pipeline_options(2, ["--runner=no_dask.dask_runner.DaskRunner"], 4)


def test_the_names_of_the_parts_of_terabytes_are_not_in_the_description(tmp_path):
    """5 TB have 200,000 token parts, whose names alone take 9 MB of Dataflow's 10."""
    names = [f"{number:032x}-00000" for number in range(60_000)]
    pipeline = beam.Pipeline()
    _ = pipeline | broadcast.CreateElements(names, Folder(str(tmp_path)))
    assert pipeline.to_runner_api().ByteSize() < 100_000
    assert len(list(tmp_path.glob("broadcast-*.json"))) == 15
