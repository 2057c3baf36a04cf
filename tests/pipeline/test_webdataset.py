"""WriteToWebDataset: shards that depend on the samples alone, and what it refuses."""

import gc
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tracemalloc
from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any
from zlib import crc32

import apache_beam as beam
import numpy as np
import PIL.Image
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.display import DisplayData
from apache_beam.transforms.error_handling import ErrorHandler

from pipeline.storage.folder import Folder
from pipeline.transforms import rows
from pipeline.transforms.encoded_samples import (
    decode_sample,
    encode_sample,
    hash_key,
    pack_sample,
    tar_bytes,
)
from pipeline.transforms.shard_plan import (
    Plan,
    ShardRule,
    Tally,
    plan_range,
    plan_shards,
    to_range,
    to_shard,
    to_size_row,
)
from pipeline.transforms.webdataset import (
    EncodeSamples,
    WriteToWebDataset,
    finish_dataset,
    write_group,
)
from tests.pipeline.test_transforms import IN_MEMORY, run_killed

pytestmark = pytest.mark.processes
SAMPLES = [
    {"__key__": f"sample-{n:03d}", "txt": f"text {n}", "cls": n, "bin": bytes([n]) * n}
    for n in range(60)
]
MANIFEST = "part-manifest.json"
WIDS_INDEX = "part-shards.json"
GroupByKey = beam.GroupByKey
MAX_BYTES = 2**20
TWO_WORKERS = ("--direct_num_workers=2", "--direct_running_mode=multi_threading")
FOUND = r"the runner (delivered|loses)|__key__|is not there as it was written"


def write(folder, samples=SAMPLES, name="part", max_samples=9, *flags, **options):
    """The URLs that the transform yields are those of its shards; the files, by their names."""
    transform = WriteToWebDataset(folder, name, max_samples=max_samples, **options)
    source = samples if isinstance(samples, beam.PTransform) else beam.Create(samples)
    with test_pipeline.TestPipeline(options=PipelineOptions([*IN_MEMORY, *flags])) as pipeline:
        urls = pipeline | source | transform
        _ = urls | beam.Map(lambda url: os.path.exists(url) or 1 / 0)
    return read_files(folder)


def read_files(folder):
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def read_samples(folder):
    """By webdataset, from files that are closed again."""
    from webdataset.tariterators import group_by_keys, tar_file_expander

    found = []
    for path in sorted(folder.glob("*.tar")):
        with path.open("rb") as stream:
            found += group_by_keys(tar_file_expander([{"stream": stream, "url": str(path)}]))
    return [{key: sample[key] for key in sample if key != "__url__"} for sample in found]


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("honest")
    return folder, write(folder)


READ_BY_INDEX = """
import sys, wids
index, cache = sys.argv[1:]
found = wids.ShardListDataset(index, cache_dir=cache, transformations=[], keep=True)
for sample in found:
    print(sample["__key__"], sample[".txt"].read(), sample[".bin"].read())
"""  # in a process of its own: wids leaves files open


def test_webdataset_wids_and_datasets_read_every_sample_to_the_byte(honest, tmp_path):
    folder, _ = honest
    found = read_samples(folder)
    encoded = [s | {"txt": s["txt"].encode(), "cls": str(s["cls"]).encode()} for s in SAMPLES]
    assert sorted(found, key=itemgetter("__key__")) == encoded
    datasets, files = pytest.importorskip("datasets"), f"{folder}/*.tar"
    named = {"data_files": files, "split": "train", "cache_dir": str(tmp_path)}
    rows = datasets.load_dataset("webdataset", **named).remove_columns("__url__")
    assert sorted(rows, key=itemgetter("__key__")) == SAMPLES
    command = [sys.executable, "-c", READ_BY_INDEX, str(folder / WIDS_INDEX), str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [f"{each['__key__']} {each['txt']} {each['bin']}" for each in found]


def test_the_manifest_says_what_each_shard_holds_and_no_shard_is_larger_than_its_bound(honest):
    _, files = honest
    manifest = json.loads(files[MANIFEST])
    names = [f"part-{number:06d}.tar" for number in range(len(manifest["shards"]))]
    assert files.keys() == {MANIFEST, WIDS_INDEX, *names}
    assert [each["name"] for each in manifest["shards"]] == names
    assert [each["bytes"] for each in manifest["shards"]] == [len(files[name]) for name in names]
    assert manifest["samples"] == 60
    assert sum(each["samples"] for each in manifest["shards"]) == 60
    assert {each["samples"] for each in manifest["shards"][:-1]} <= {8, 9}


@pytest.mark.parametrize("flags", [(), TWO_WORKERS, ("--runtime_type_check",)], ids=" ".join)
def test_bytes_do_not_depend_on_order_bundles_and_workers(honest, tmp_path, flags):
    samples = random.Random(1).sample(SAMPLES, len(SAMPLES))
    rebundled = beam.Create(samples, reshuffle=flags != TWO_WORKERS)
    assert write(tmp_path, rebundled, "part", 9, *flags) == honest[1]


def test_a_sample_more_than_a_shard_holds_begins_the_next(tmp_path):
    large = [{"__key__": str(n), "bin": bytes(3000)} for n in range(8)]
    size = 512 + 3072  # of each, of which two and the end fit into 10,240 bytes
    files = write(tmp_path, large, max_bytes=10240)
    rows = json.loads(files[MANIFEST])["shards"]
    assert [each["samples"] for each in rows] == [2] * 4
    assert all(each["bytes"] == 10240 >= 2 * size + 1024 for each in rows)


def test_writing_again_writes_nothing(honest, tmp_path, monkeypatch):
    shutil.copytree(honest[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(Folder, "write", lambda *_: 1 / 0)
    assert write(tmp_path) == honest[1]


def test_samples_come_from_any_source(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line-{n}\n" for n in range(20)))
    with test_pipeline.TestPipeline() as pipeline:
        lines = pipeline | beam.io.ReadFromText(str(tmp_path / "a.txt"))
        samples = lines | beam.Map(lambda line: {"__key__": line, "txt": line})
        urls = samples | WriteToWebDataset(str(tmp_path / "data"))
        assert_that(urls, equal_to([str(tmp_path / "data/shard-000000.tar")]))
    assert len(read_samples(tmp_path / "data")) == 20


def test_values_are_encoded_as_webdataset_encodes_them(tmp_path):
    array = np.arange(6).reshape(2, 3)
    sample = {
        "__key__": "a", "__url__": "not written", "none": None, "json": {"a": [1, None]}, "npy": array,
        "seg.txt": "größe", "raw": b"\0\xff", "txt.gz": "packed",
    }  # fmt: skip
    write(tmp_path, [sample])
    [found] = read_samples(tmp_path)
    assert found.keys() == {"__key__", "json", "npy", "seg.txt", "raw", "txt.gz"}
    assert json.loads(found["json"]) == {"a": [1, None]}
    assert np.array_equal(np.load(io.BytesIO(found["npy"])), array)
    assert found["seg.txt"].decode() == "größe"
    assert encode_sample(sample, MAX_BYTES) == encode_sample(
        dict(reversed(sample.items())), MAX_BYTES
    )


def test_an_encoded_sample_has_its_files_without_headers_and_padding():
    sample = {"__key__": "größe/a", "txt": "text", "cls": 7}
    digest = bytes.fromhex("e3350577dcda1ff769340be6fcc3ce0c")
    files = b"\0\0\0\x0d" + b"\0\0\0\0\0\0\0\1" + "größe/a.cls".encode() + b"7"
    files += b"\0\0\0\x0d" + b"\0\0\0\0\0\0\0\4" + "größe/a.txt".encode() + b"text"
    encoded = encode_sample(sample, MAX_BYTES)
    assert encoded == digest + (4096).to_bytes(8, "big") + files


@pytest.mark.parametrize("key", ["a", "x" * 96, "x" * 97, "größe", "a/b"])
def test_an_encoded_sample_says_how_much_of_a_tar_it_takes(key):
    encoded = encode_sample({"__key__": key, "txt": "x" * 513, "bin": b""}, MAX_BYTES)
    packed = b"".join(pack_sample(encoded))
    assert tar_bytes(encoded) == len(packed)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames() == [f"{key}.bin", f"{key}.txt"]


@pytest.mark.parametrize(
    ("limits", "sha256"),
    [
        ({"max_samples": 9}, "e653c37b9882b1ba1affb8574f77dcd90c40667deb7ad14247660c6570b20207"),
        ({"num_shards": 5}, "26e6a70731964f4b41bfbf30c894c5b5f537aa32ee474fdf94a24777ccf505be"),
    ],
)
def test_equal_samples_give_the_bytes_that_they_always_gave(limits, sha256, tmp_path):
    keys = ["train/0001", "größe", "x" * 300, "a.b/c", 7]
    others = [
        {"__key__": key, "txt": str(key), "json": {"a": [1, None]}, "empty": b""} for key in keys
    ]
    with test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
        _ = pipeline | beam.Create([*SAMPLES, *others]) | WriteToWebDataset(tmp_path, **limits)
    manifest = (tmp_path / "manifest.json").read_bytes()
    assert hashlib.sha256(manifest).hexdigest() == sha256


def test_long_and_foreign_keys_are_read_back(tmp_path):
    keys = ["x" * 300, "größe", "a b"]
    write(tmp_path, [{"__key__": key, "txt": key} for key in keys])
    found = {each["__key__"]: each["txt"].decode() for each in read_samples(tmp_path)}
    assert found == dict(zip(keys, keys, strict=True))


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"txt": "a"}, r"a sample's __key__ is None, expected text .*the sample is {'txt': 'a'}"),
        (("a", b""), r"a sample's __key__ is None, .*the sample is \('a', b''\)"),
        ({"__key__": True, "txt": ""}, r"a sample's __key__ is True, expected text .*, or an integer"),
        ({"__key__": 7.0, "txt": ""}, r"a sample's __key__ is 7\.0, expected text .*, or an integer"),
        ({"__key__": "a\\b", "txt": ""}, r"__key__ is 'a\\\\b', expected text"),
        ({"__key__": "a\ud800", "txt": ""}, r"__key__ is 'a\\ud800', expected text"),
        ({"__key__": "a", 5: b""}, r"the sample 'a': the extension 5 is no end of a file's name"),
        ({"__key__": "", "txt": "a"}, r"a sample's __key__ is '', expected text that is not empty"),
        ({"__key__": "a.b", "txt": "a"}, r"__key__ is 'a\.b', and webdataset would read another key"),
        ({"__key__": "c/a.b", "txt": "a"}, r"__key__ is 'c/a\.b', and webdataset would read another"),
        ({"__key__": "/a", "txt": "a"}, r"__key__ is '/a', .*a name before and after each '/'"),
        ({"__key__": "a//b", "txt": "a"}, r"__key__ is 'a//b', .*a name before and after each '/'"),
        ({"__key__": "a/", "txt": "a"}, r"__key__ is 'a/', .*a name before and after each '/'"),
        ({"__key__": "../a", "txt": "a"}, r"__key__ is '\.\./a', expected .* folders '\.' and '\.\.'"),
        ({"__key__": "__a__/b", "txt": ""}, r"makes a file __a__/b\.txt, which webdataset skips"),
        ({"__key__": "a"}, r"the sample 'a' is empty: it has no entry besides __key__"),
        ({"__key__": "a", "txt": None}, r"the sample 'a' is empty"),
        ({"__key__": "a", "odd": 5}, r"the sample 'a': its 'odd' is a int that cannot be encoded"),
        ({"__key__": "a", "json": {1, 2}}, r"the sample 'a': its 'json' is a set that cannot be"),
        ({"__key__": "a", "x/y": b""}, r"the sample 'a': the extension 'x/y'"),
        ({"__key__": "a", "x\0y": b""}, r"the sample 'a': the extension 'x\\x00y' is no end of a"),
        ({"__key__": "a", "txt": "", "TXT": ""}, r"'a': the extension 'txt' is 'TXT' in other letters"),
        ({"__key__": "a", "txt": "", "_split": "x"}, r"'a': the extension '_split' begins with '_'"),
        ({"__key__": "a", "txt": "", "__note__": None}, r"the extension '__note__' begins with '_'"),
        ({"__key__": "__a", "b__": b""}, r"makes a file __a\.b__, which webdataset skips"),
        ({"__key__": "a", "odd": {}}, r"cannot be encoded \(webdataset encodes no 'odd'\); give"),
        ({"__key__": "a", "b": bytes(2**20)}, r"the sample 'a' takes 1,04\d,\d+ bytes, more than a sh"),
    ],
)  # fmt: skip
def test_a_sample_that_cannot_be_written_is_named(sample, message):
    with pytest.raises(ValueError, match=message):
        encode_sample(sample, MAX_BYTES)


def refused(folder, message, *arguments, **options):
    with pytest.raises(Exception, match=message):
        write(folder, *arguments, **options)
    assert not {MANIFEST, WIDS_INDEX} & set(os.listdir(folder)), "it looks whole"


def test_notes_of_webdataset_itself_are_left_out_and_rows_become_dicts():
    row = beam.Row(lang="en", tags=[beam.Row(a=1)])
    sample = {"__key__": "a", "__url__": "x.tar", "__local_path__": "/x.tar", "json": row}
    decoded = decode_sample(encode_sample(sample, MAX_BYTES))
    assert decoded.keys() == {"__key__", "json"}
    assert json.loads(decoded["json"]) == {"lang": "en", "tags": [{"a": 1}]}


@pytest.mark.filterwarnings("default")
def test_an_array_is_an_image_by_its_extension():
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    encoded = encode_sample({"__key__": "a", "png": image, "cls": 3}, MAX_BYTES)
    decoded = decode_sample(encoded)
    assert [*decoded] == ["__key__", "cls", "png"]
    found = PIL.Image.open(io.BytesIO(decoded["png"]))
    assert np.array_equal(np.asarray(found), image)
    assert decoded["cls"] == b"3"


def test_hints_of_any_mapping_are_accepted(tmp_path):
    with test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
        for number, hint in enumerate((Mapping[str, Any], dict, Any)):
            create = f"Create{number}" >> beam.Create(SAMPLES)
            hinted = f"Hint{number}" >> beam.Map(lambda each: each).with_output_types(hint)
            name = f"hint{number}"
            _ = pipeline | create | hinted | name >> WriteToWebDataset(tmp_path, name)
    assert len([*tmp_path.glob("hint*-manifest.json")]) == 3


def test_datasets_of_two_names_share_a_folder_and_each_has_its_indexes(honest, tmp_path):
    few = SAMPLES[:20]
    with test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
        for name, samples in (("train", SAMPLES), ("val", few), ("shard", few)):
            source = pipeline | f"Create {name}" >> beam.Create(samples)
            _ = source | f"Write {name}" >> WriteToWebDataset(tmp_path, name, max_samples=9)
    files = read_files(tmp_path)
    alone = {name.replace("part", "train"): data for name, data in honest[1].items()}
    tars = {name: data for name, data in files.items() if name.startswith("train-0")}
    assert tars == {name: data for name, data in alone.items() if name.endswith(".tar")}
    totals = {"train-manifest.json": 60, "val-manifest.json": 20, "manifest.json": 20}
    assert {name: json.loads(files[name])["samples"] for name in totals} == totals
    index = json.loads(files["val-shards.json"])["shardlist"]
    assert sum(shard["nsamples"] for shard in index) == 20
    assert {"train-shards.json", "shards.json"} <= files.keys()
    assert write(tmp_path, few, "val") == files, "running one again changes nothing"
    with pytest.raises(Exception, match=r"val-(00000\d\.tar|manifest.json) is of another dataset"):
        write(tmp_path, SAMPLES, "val")


@pytest.mark.parametrize("url", ["{}", "{}/../{}/"])
def test_two_branches_of_one_name_are_refused_before_anything_is_written(tmp_path, url):
    folder = tmp_path / "a"
    other = str(tmp_path / url.format("a", "a"))
    pipeline = beam.Pipeline()
    samples = pipeline | beam.Create(SAMPLES)
    _ = samples | "One" >> WriteToWebDataset(folder)
    with pytest.raises(
        ValueError, match=r"two transforms of one pipeline write there, One and Two"
    ):
        _ = samples | "Two" >> WriteToWebDataset(other)
    assert not folder.exists()


def test_nothing_is_written_for_a_pipeline_that_never_runs(tmp_path):
    _ = beam.Pipeline() | beam.Create(SAMPLES) | WriteToWebDataset(tmp_path / "data")
    assert not [*tmp_path.iterdir()]


def test_what_a_killed_pipeline_had_begun_to_write_goes_and_that_of_others_stays(honest, tmp_path):
    begun = ".part-000001.tar.partial-12-0123abcd", ".part-manifest.json.partial-12-0123abcd"
    others = ".val-000001.tar.partial-12-0123abcd", ".part-0.txt"
    for name in (*begun, *others):
        (tmp_path / name).write_bytes(b"x")
    files = write(tmp_path)
    assert files.keys() == {*honest[1], *others}


def test_two_samples_of_one_key_in_different_bundles_end_the_job(tmp_path):
    twice = beam.Create([*SAMPLES, {"__key__": "sample-007", "txt": "another"}], reshuffle=True)
    message = "two samples have the __key__ 'sample-007'; a key names one"
    refused(tmp_path, message, twice, "part", 9, *TWO_WORKERS)


def test_no_sample_gives_a_complete_dataset_of_no_shards(tmp_path):
    files = write(tmp_path, [])
    assert files.keys() == {MANIFEST, WIDS_INDEX}
    assert json.loads(files[MANIFEST]) == {
        "format": "webdataset shards 1", "samples": 0, "bytes": 0, "shards": []
    }  # fmt: skip
    assert json.loads(files[WIDS_INDEX])["shardlist"] == []
    assert write(tmp_path, []) == files
    with pytest.raises(Exception, match=r"part-manifest\.json is of another dataset"):
        write(tmp_path, SAMPLES)


@pytest.mark.parametrize("options", [{}, {"num_shards": 5}], ids=str)
def test_a_cell_that_is_too_large_for_a_shard_is_divided(options, tmp_path):
    """600 keys have two whose hashes begin with the same 16 bits."""
    many = [{"__key__": str(n), "txt": ""} for n in range(600)]
    rows = json.loads(write(tmp_path, many, "part", 1, **options)[MANIFEST])["shards"]
    assert [row["samples"] for row in rows] == [1] * 600
    keys = [sample["__key__"] for sample in read_samples(tmp_path)]
    assert keys == sorted(map(str, range(600)), key=hash_key)


@pytest.mark.parametrize("name", [MANIFEST, "manifest.json", "other.tar", "part-0.tar"])
def test_the_folder_of_another_dataset_is_refused_before_any_work(tmp_path, name):
    (tmp_path / name).write_text('{"format_version": 3}')
    with pytest.raises(ValueError, match=rf"{name} is of another dataset; give another folder"):
        write(tmp_path)


@pytest.mark.parametrize(
    ("samples", "max_samples"),
    [([*SAMPLES, {"__key__": "one-more", "txt": ""}], 9), (SAMPLES, 60), (SAMPLES[::-1], 4)],
)
def test_other_samples_or_bounds_are_refused_and_add_nothing(
    samples, max_samples, honest, tmp_path
):
    shutil.copytree(honest[0], tmp_path, dirs_exist_ok=True)
    with pytest.raises(Exception, match=r"part-(00000\d\.tar|manifest.json) is of another dataset"):
        write(tmp_path, samples, "part", max_samples)
    assert read_files(tmp_path) == honest[1]


def test_settings_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ValueError, match="name is 'a/b', expected letters"):
        WriteToWebDataset(str(tmp_path), "a/b")
    with pytest.raises(ValueError, match="max_bytes is 100 and max_samples 5, expected 10240 or"):
        WriteToWebDataset(str(tmp_path), max_bytes=100, max_samples=5)
    for number in (0, 1.5):
        with pytest.raises(
            ValueError, match=rf"num_shards is {number}, expected an integer from 1"
        ):
            WriteToWebDataset(str(tmp_path), num_shards=number)
    with pytest.raises(ValueError, match="on_bad_sample is 'skip', expected 'stop' or 'reject'"):
        WriteToWebDataset(str(tmp_path), on_bad_sample="skip")


def test_a_runners_page_names_the_transform_its_stages_and_where_it_writes(tmp_path):
    transform, pipeline = WriteToWebDataset(str(tmp_path), "part"), beam.Pipeline()
    shown = {item.key: item.value for item in DisplayData.create_from(transform).items}
    assert (shown["url"], shown["name"], shown["max_samples"]) == (str(tmp_path), "part", 100_000)
    _ = pipeline | beam.Create(SAMPLES) | transform
    stages = pipeline.to_runner_api().components.transforms.values()
    labels = {f"WriteToWebDataset/{name}" for name in ("EncodeSamples", "WriteShards")}
    assert labels <= {each.unique_name for each in stages}


@pytest.mark.parametrize("num_shards", [None, 4])
def test_grouped_samples_reach_the_step_that_writes_them_without_another(num_shards, tmp_path):
    """A step between would move all samples through a worker once more (`_OfSameCode`)."""
    pipeline = beam.Pipeline()
    _ = pipeline | beam.Create(SAMPLES) | WriteToWebDataset(tmp_path, num_shards=num_shards)
    graph = pipeline.to_runner_api(use_fake_coders=True).components
    steps = {each.unique_name.partition("/")[2]: each for each in graph.transforms.values()}
    given = set(steps["WriteShards"].inputs.values())
    assert given & set(steps["GroupByKey"].outputs.values())


# Lies of a runner: of groups that reach WriteShards, of what was counted, and of what was written.
OTHER = encode_sample({"__key__": "of-another-job", "txt": "x"}, MAX_BYTES)


def _group(change, number=1):
    return lambda groups: [(n, change(each) if n == number else each) for n, each in groups]


def _move(groups, keep):
    (_, first), (_, second), *rest = groups
    return [(0, first if keep else first[1:]), (1, [*second, first[0]]), *rest]


def _exchange(groups):
    (_, first), (_, second), *rest = groups
    return [(0, [second[0], *first[1:]]), (1, [first[0], *second[1:]]), *rest]


def _in_parts(groups):
    (_, first), *rest = groups
    return [(0, first[:3]), (0, first[3:]), *rest]


GROUP_LIES = {
    "a sample is lost": _group(lambda found: found[1:]),
    "the last sample is lost": _group(lambda found: found[:-1]),
    "half of every group is lost": lambda groups: [(n, found[::2]) for n, found in groups],
    "a group is empty": _group(lambda _: []),
    "a group is lost": lambda groups: groups[1:],
    "the last group is lost": lambda groups: groups[:-1],
    "a sample comes twice": _group(lambda found: [found[0], *found]),
    "a sample comes twice, another is lost": _group(lambda found: [found[0], *found[:-1]]),
    "a group comes twice": lambda groups: [groups[0], *groups],
    "a group comes in two parts": _in_parts,
    "a group comes, then an empty one of its number": lambda groups: [*groups, (0, [])],
    "a group has a number of no shard": lambda groups: [*groups[1:], (99, groups[0][1])],
    "a group has a number below all": lambda groups: [*groups[1:], (-1, groups[0][1])],
    "two groups have each other's numbers": lambda groups: [(1 - n if n < 2 else n, found) for n, found in groups],
    "two groups come as one": lambda groups: [(0, groups[0][1] + groups[1][1]), *groups[2:]],
    "a sample comes to another group": lambda groups: _move(groups, keep=False),
    "a sample comes to its group and to another": lambda groups: _move(groups, keep=True),
    "two samples have each other's groups": _exchange,
    "a sample of another job comes too": _group(lambda found: [*found, OTHER]),
    "a sample of another job stands in one's place": _group(lambda found: [OTHER, *found[1:]]),
    "a byte of a sample is another": _group(lambda found: [found[0][:-600] + b"\xaa" + found[0][-599:], *found[1:]]),
    "a sample is cut": _group(lambda found: [found[0][:-512], *found[1:]]),
    "a sample is longer": _group(lambda found: [found[0] + bytes(512), *found[1:]]),
    "an empty sample stands in one's place": _group(lambda found: [b"", *found[1:]]),
    "a hash is another": _group(lambda found: [bytes([found[0][0] ^ 1]) + found[0][1:], *found[1:]]),
}  # fmt: skip


def _tally(change):
    return lambda plan: plan._replace(expected=(change(plan.expected[0]), *plan.expected[1:]))


PLAN_LIES = {
    "a sample was counted twice": _tally(lambda found: found._replace(samples=found.samples + 1)),
    "bytes were counted twice": _tally(lambda found: found._replace(num_bytes=2 * found.num_bytes)),
    "a checksum is another": _tally(lambda found: found._replace(checksum=found.checksum ^ 1)),
    "the last shard was not planned": lambda plan: Plan(plan.firsts[:-1], plan.expected[:-1]),
    "the first shard was not planned": lambda plan: Plan(plan.firsts[1:], plan.expected[1:]),
    "nothing was planned": lambda _: Plan(),
    "a shard begins elsewhere": lambda plan: plan._replace(firsts=(plan.firsts[0], b"\xff" + plan.firsts[1], *plan.firsts[2:])),
}  # fmt: skip


def _row(row, place, value):
    return (*row[:place], value, *row[place + 1 :])


def _of_other_job():
    """The row of a shard of one other sample, by the same name."""
    with tempfile.TemporaryDirectory() as folder:
        rule = ShardRule(Folder(folder), "part", 2**28, 9)
        tally = Tally(1, len(OTHER) - 16, crc32(OTHER))
        [row] = write_group((0, [OTHER]), Plan((OTHER[:16],), (tally,)), rule)
        return row


WRITTEN_LIES = {
    "a written shard is not told of": lambda rows: rows[1:],
    "a written shard is told of twice": lambda rows: [rows[0], *rows],
    "no written shard is told of": lambda _: [],
    "a shard is told of by another name": lambda rows: [("part-000099.tar", *rows[0][1:]), *rows[1:]],
    "a shard's size is another": lambda rows: [_row(rows[0], 2, 10240), *rows[1:]],
    "a shard's count is another": lambda rows: [_row(rows[0], 1, rows[0][1] + 1), *rows[1:]],
    "a shard's sha256 is another": lambda rows: [_row(rows[0], 3, "0" * 64), *rows[1:]],
    "two shards have each other's sha256": lambda rows: [_row(rows[0], 3, rows[1][3]), _row(rows[1], 3, rows[0][3]), *rows[2:]],
    "two shards have each other's names": lambda rows: [_row(rows[0], 0, rows[1][0]), _row(rows[1], 0, rows[0][0]), *rows[2:]],
    "a shard has no seal": lambda rows: [rows[0][:4], *rows[1:]],
    "a row is of another job": lambda rows: [_of_other_job(), *rows[1:]],
}  # fmt: skip
HARMLESS = {
    "nothing is told otherwise": lambda groups: groups,
    "groups come in another order": lambda groups: groups[::-1],
    "samples come in another order": lambda groups: [(n, found[::-1]) for n, found in groups],
    "samples come from an iterator": lambda groups: [(n, iter(found)) for n, found in groups],
    "ranges are counted in another order": lambda groups: groups,
    "every bundle runs again": lambda groups: groups,
}


class _LyingGroupByKey(beam.PTransform):
    def __init__(self, lie):
        super().__init__()
        self._lie = lie

    def expand(self, pairs):
        lists = pairs | GroupByKey() | beam.MapTuple(lambda number, found: (number, sorted(found)))
        told = beam.FlatMap(lambda groups, lie: lie(sorted(groups)), self._lie)
        return lists | beam.combiners.ToList() | "Tell" >> told


def group(pairs):
    return [(n, [each for _, each in own]) for n, own in groupby(sorted(pairs), key=itemgetter(0))]


def run_lying(folder, name, **options):
    """The transform's functions, called as a runner calls them that tells a lie."""
    rule = ShardRule(Folder(str(folder)), "part", 2**28, 9, **options)
    found = [encode_sample(sample, rule.max_bytes) for sample in SAMPLES]
    rows = group(to_size_row(each, rule) for each in found)
    ranges = [plan_range(range_rows, rule) for range_rows in rows]
    plan = plan_shards(ranges[::-1] if "counted" in name else ranges, rule)
    plan = PLAN_LIES.get(name, lambda told: told)(plan)
    groups = group(
        to_range(each, rule) if rule.num_shards else to_shard(each, plan) for each in found
    )
    told = (GROUP_LIES | HARMLESS).get(name, lambda told: told)(groups)
    if name == "every bundle runs again":
        _ = [[*write_group(each, plan, rule)] for each in told]
    written = [row for each in told for row in write_group(each, plan, rule)]
    return [*finish_dataset(WRITTEN_LIES.get(name, lambda told: told)(written), plan, rule)]


@pytest.mark.parametrize("num_shards", [None, 5])
@pytest.mark.parametrize("name", [*GROUP_LIES, *PLAN_LIES, *WRITTEN_LIES])
def test_a_lie_of_a_runner_is_found(name, num_shards, tmp_path):
    with pytest.raises(ValueError, match=FOUND):
        run_lying(tmp_path, name, num_shards=num_shards)
    assert not {MANIFEST, WIDS_INDEX} & set(os.listdir(tmp_path)), "it looks whole"


def test_a_lie_told_by_a_runner_itself_is_found(tmp_path, monkeypatch):
    lie = GROUP_LIES["a group comes twice"]
    monkeypatch.setattr(beam, "GroupByKey", lambda: _LyingGroupByKey(lie))
    refused(tmp_path, FOUND)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_lie_gives_the_same_bytes(name, honest, tmp_path):
    run_lying(tmp_path, name)
    assert read_files(tmp_path) == honest[1]
    run_lying(tmp_path / "known", name, num_shards=5)
    run_lying(tmp_path / "plain", "nothing is told otherwise", num_shards=5)
    assert read_files(tmp_path / "known") == read_files(tmp_path / "plain")


def test_a_runner_that_reorders_groups_gives_the_same_bytes(honest, tmp_path, monkeypatch):
    lie = HARMLESS["groups come in another order"]
    monkeypatch.setattr(beam, "GroupByKey", lambda: _LyingGroupByKey(lie))
    assert write(tmp_path) == honest[1]


def test_a_tar_is_one_that_tarfile_reads_to_its_end(honest):
    _, files = honest
    with tarfile.open(fileobj=io.BytesIO(files["part-000000.tar"])) as tar:
        members = tar.getmembers()
    said = {(each.mode, each.mtime, each.uid, each.uname) for each in members}
    assert said == {(0o644, 0, 0, "")}
    assert len(files["part-000000.tar"]) % tarfile.RECORDSIZE == 0


def test_a_killed_pipeline_looks_whole_to_nobody_and_the_same_one_completes_it(honest, tmp_path):
    run_killed(SAMPLES, f"WriteToWebDataset('{tmp_path}', 'part', max_samples=9)", MANIFEST)
    assert MANIFEST not in read_files(tmp_path)
    assert write(tmp_path) == honest[1]


def test_the_number_of_shards_is_given_and_samples_are_the_same(honest, tmp_path):
    known = write(tmp_path, SAMPLES, "part", 30, num_shards=4)
    rows = json.loads(known[MANIFEST])["shards"]
    assert len(rows) == 4
    assert sum(row["samples"] for row in rows) == 60
    assert read_samples(tmp_path) == read_samples(honest[0])
    again = tmp_path / "again"
    assert (
        write(again, beam.Create(SAMPLES[::-1], reshuffle=True), "part", 30, num_shards=4) == known
    )
    with pytest.raises(Exception, match=r"part-(00000\d\.tar|manifest.json) is of another dataset"):
        write(tmp_path, SAMPLES, "part", 30)


def test_keys_with_folders_and_integers_are_read_back_by_webdataset_and_wids(tmp_path):
    keys = ["train/0001", "a.b/c", "ünï/漢", "a/b/c/d", "7x", "n01440764/n01440764_10026"]
    given = [*keys, 7, np.int64(12345678901234), 0]
    write(tmp_path, [{"__key__": key, "txt": str(key), "Cls.txt": "x"} for key in given])
    found = {sample["__key__"]: sample["txt"].decode() for sample in read_samples(tmp_path)}
    expected = {*keys, "7", "12345678901234", "0"}
    assert found == {key: key for key in expected}
    from wids.wids import splitname

    with tarfile.open(tmp_path / "part-000000.tar") as tar:
        names = tar.getnames()
    assert {splitname(name)[0] for name in names} == expected


BAD = [
    ({"txt": "x"}, "no_key", ""),
    ({"__key__": "a.b", "txt": "x"}, "bad_key", "a.b"),
    ({"__key__": "c", "json": {1}}, "bad_entry", "c"),
    ({"__key__": "d"}, "empty", "d"),
    ({"__key__": "e", "bin": bytes(20000)}, "too_large", "e"),
    ({"__key__": "f", "png": np.zeros(3, dtype=np.complex64)}, "bad_entry", "f"),
]


def test_bad_samples_are_rejected_with_their_reasons_and_one_of_a_doubled_key_is_kept(tmp_path):
    good = [{"__key__": f"k{n}", "txt": str(n)} for n in range(20)]
    doubled = [{"__key__": "k3", "txt": "3" * 600}, {"__key__": "k3", "txt": "3"}]
    rejects = {"max_bytes": 10240, "on_bad_sample": "reject"}
    source = [*doubled, *(sample for sample, *_ in BAD), *good]
    with test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
        transform = WriteToWebDataset(tmp_path / "a", "part", **rejects)
        written = pipeline | beam.Create(source, reshuffle=True) | transform
        rows = written["rejected"] | beam.Map(
            lambda each: (each.reason, each.key, bool(each.message))
        )
        expected = [(reason, key, True) for _, reason, key in BAD]
        assert_that(rows, equal_to([*expected, *[("doubled_key", "k3", True)] * 2]))
        texts = written["rejected"] | beam.Filter(lambda each: each.key == "k3")
        texts |= "Texts" >> beam.Map(lambda each: each.sample["txt"])
        assert_that(texts, equal_to([b"3", b"3" * 600]), label="texts")
        count = written["urls"] | beam.combiners.Count.Globally()
        assert_that(count, equal_to([3]), label="urls")
    assert read_files(tmp_path / "a") == write(
        tmp_path / "b", good, max_samples=10**5, max_bytes=10240
    )


def test_with_exception_handling_is_that_of_beam(tmp_path):
    with test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
        transform = WriteToWebDataset(tmp_path, "part").with_exception_handling()
        written = (
            pipeline | beam.Create([{"__key__": "a", "txt": ""}, {"__key__": "b"}]) | transform
        )
        assert_that(written["good"], equal_to([str(tmp_path / "part-000000.tar")]))
        bad = written["bad"] | beam.MapTuple(
            lambda sample, error: (sample, error[0].__name__, error[1])
        )
        message = "the sample 'b' is empty: it has no entry besides __key__"
        assert_that(bad, equal_to([({"__key__": "b"}, "BadSampleError", message)]), label="bad")


def test_bad_samples_go_to_the_error_handler_of_a_pipeline(tmp_path):
    with test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
        with ErrorHandler(beam.Map(lambda bad: bad[0]["__key__"])) as handler:
            transform = WriteToWebDataset(tmp_path, "part").with_error_handler(handler)
            source = pipeline | beam.Create([{"__key__": "a", "txt": ""}, {"__key__": "b"}])
            assert_that(source | transform, equal_to([str(tmp_path / "part-000000.tar")]))
        assert_that(handler.output(), equal_to(["b"]), label="bad")


def test_shards_whose_numbers_have_seven_digits_follow_the_others(tmp_path, monkeypatch):
    """Sorted as text, part-1000000.tar is the first."""
    monkeypatch.setattr(ShardRule, "shard_name", lambda _, n: f"part-{999_998 + n:06d}.tar")
    run_lying(tmp_path, "nothing is told otherwise")
    shards = json.loads((tmp_path / MANIFEST).read_text())["shards"]
    assert [shard["name"] for shard in shards[1:4]] == [
        "part-999999.tar", "part-1000000.tar", "part-1000001.tar"
    ]  # fmt: skip


def test_a_shard_is_held_once_beside_its_samples(tmp_path):
    rule = ShardRule(Folder(str(tmp_path)), "part", 2**28, 100)
    content = bytes(2**20)
    found = [encode_sample({"__key__": str(n), "bin": content}, 2**28) for n in range(16)]
    rows = group(to_size_row(each, rule) for each in found)
    plan = plan_shards([plan_range(each, rule) for each in rows], rule)
    tracemalloc.start()
    try:
        [row] = write_group((0, found), plan, rule)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert row[2] < peak < 1.2 * row[2]


@pytest.mark.parametrize("options", [{}, {"num_shards": 8}, {"rejects": True}])
def test_a_worker_keeps_nothing_of_the_samples_that_it_encoded_and_wrote(options, tmp_path):
    """Encodes and writes ten groups, and counts what Python holds after each."""
    rule = ShardRule(Folder(str(tmp_path)), "part", 2**28, 9, **options)
    encoder = EncodeSamples(rule)
    encoder.setup()
    content = bytes(2**16)
    found = [encode_sample({"__key__": str(n), "bin": content}, 2**28) for n in range(90)]
    rows = group(to_size_row(each, rule) for each in found)
    plan = plan_shards([plan_range(each, rule) for each in rows], rule)
    to_group = to_range if rule.num_shards else to_shard
    groups = group(to_group(each, rule if rule.num_shards else plan) for each in found)
    assert len(groups) >= 8
    held = []
    tracemalloc.start()
    try:
        for number, encoded in groups:
            samples = [decode_sample(each) for each in encoded]
            again = [each for sample in samples for each in encoder.process(sample)]
            assert again == encoded
            written = [*write_group((number, again), plan, rule)]
            assert all(row[1] <= 9 for row in written)
            del samples, again, written
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[-1] - held[1] < len(content), held


@pytest.mark.parametrize(
    ("max_samples", "expected"),
    [
        (2, [(bytes(16), 2, 1536, 30), (b"\0\1" + bytes(14), 1, 1024, 40)]),
        (
            1,
            [
                (bytes(16), 1, 512, 10),
                (bytes(15) + b"\1", 1, 1024, 20),
                (b"\0\1" + bytes(14), 1, 1024, 40),
            ],
        ),
    ],
)
def test_a_range_is_planned_as_plain_tuples_which_beam_need_not_pickle(max_samples, expected):
    rule = ShardRule(Folder("unused"), "part", 2**28, max_samples)
    hashes = [b"\0\1" + bytes(14), bytes(15) + b"\1", bytes(16)]
    sizes = [(1024, 40), (1024, 20), (512, 10)]
    rows = [
        digest + num_bytes.to_bytes(8, "big") + checksum.to_bytes(4, "big")
        for digest, (num_bytes, checksum) in zip(hashes, sizes, strict=True)
    ]
    found = plan_range((0, rows), rule)
    assert found == expected
    assert {type(row) for row in found} == {tuple}
    assert plan_shards([found], rule).expected == tuple(Tally(*row[1:]) for row in expected)


def test_a_plan_of_a_hundred_thousand_shards_says_where_each_sample_goes():
    rule = ShardRule(Folder("unused"), "part", 2**28, 1)
    hashes = [hash_key(str(number)) for number in range(100_000)]
    rows = group(to_size_row(digest + bytes(512), rule) for digest in hashes)
    plan = plan_shards([plan_range(each, rule) for each in rows], rule)
    assert plan.firsts == tuple(sorted(hashes))
    assert [to_shard(digest, plan)[0] for digest in sorted(hashes)[:50]] == [*range(50)]


def test_rows_that_cannot_be_written_are_rows_of_an_output_as_beam_yaml_asks(tmp_path):
    with test_pipeline.TestPipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
        source = pipeline | beam.Create([beam.Row(id=7, txt="a"), beam.Row(id="b.c", txt="b")])
        handling = {"output": "errors"}
        written = source | rows.write_to_webdataset(str(tmp_path), error_handling=handling)
        assert_that(written["good"], equal_to([str(tmp_path / "shard-000000.tar")]))
        found = written["errors"] | beam.Map(lambda row: (row.reason, row.key, row.msg[:32]))
        expected = [("bad_key", "b.c", "a sample's __key__ is 'b.c', and")]
        assert_that(found, equal_to(expected), label="errors")
    with pytest.raises(ValueError, match=r"error_handling is {'to': 'x'}, expected {output: NAME}"):
        rows.write_to_webdataset(str(tmp_path), error_handling={"to": "x"})


def test_samples_and_bytes_are_counted(tmp_path):
    samples = [*SAMPLES[:9], {"__key__": "a"}]
    pipeline = beam.Pipeline(options=PipelineOptions(IN_MEMORY))
    transform = WriteToWebDataset(tmp_path, max_samples=5, on_bad_sample="reject")
    _ = pipeline | beam.Create(samples) | transform
    shown = pipeline.run().metrics().query()
    counted = {each.key.metric.name: each.committed for each in shown["counters"]}
    num_bytes = sum(path.stat().st_size for path in tmp_path.glob("*.tar"))
    expected = {"samples": 9, "shards": 2, "shard_bytes": num_bytes, "rejected_empty": 1}
    assert {name: counted.get(name) for name in expected} == expected
    [found] = [each for each in shown["distributions"] if each.key.metric.name == "bytes_a_sample"]
    assert (found.committed.count, found.committed.min) == (9, 3 * 1024 - 512)
