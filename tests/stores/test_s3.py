"""A whole build on a real S3 store, read by every command and by the trainer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from pipeline.shards.dataset import open_dataset
from tests.stores.conftest import ROOT, SECRET, assert_same_batches, root_hash

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def store(s3):
    return fsspec.filesystem("s3", **s3)


@pytest.fixture(scope="module")
def options_file(s3, tmp_path_factory):
    path = tmp_path_factory.mktemp("options") / "s3.json"
    path.write_text(json.dumps(s3))
    return f"@{path}"


@pytest.fixture(scope="module")
def uploaded(store, corpus):
    store.put(f"{corpus}/", "corpus/text/", recursive=True)
    return "s3://corpus/text"


@pytest.fixture(scope="module")
def built(uploaded, pipeline, options_file):
    """Input, tokens and shards on S3."""
    assert pipeline("build", *words_of_build(uploaded), "--storage_options", options_file) == 0
    return "s3://corpus/data"


def words_of_build(text):
    return f"--input {text}/*.jsonl* --output s3://corpus/data --tokens s3://corpus/tokens".split()


def test_a_build_on_s3_equals_a_local_one_and_is_streamed(built, local, s3, store):
    assert root_hash(built, s3) == root_hash(local)
    assert_same_batches(open_dataset(built, s3), open_dataset(str(local)))
    names = {name.removeprefix("corpus/data/") for name in store.find("corpus/data")}
    local_names = {str(path.relative_to(local)) for path in local.rglob("*") if path.is_file()}
    assert names == {name for name in local_names if not name.startswith("tokens/")}


def test_verify_inspect_and_report_read_from_s3(built, pipeline, options_file, capsys):
    for command, said in (("verify", "sound"), ("inspect", "label:"), ("report", "root hash")):
        assert pipeline(command, built, "--storage_options", options_file) == 0
        assert said in capsys.readouterr().out, command


def test_an_export_from_s3_to_s3_equals_a_local_one(
    built, local, pipeline, options_file, store, tmp_path
):
    words = ("--format", "parquet", "--seq_len", "64", "--output")
    rows = ("s3://corpus/rows", "--storage_options", options_file)
    assert pipeline("export", built, *words, *rows) == 0
    assert pipeline("export", local, *words, tmp_path) == 0
    store.invalidate_cache()
    there = {Path(name).name: store.cat_file(name) for name in store.find("corpus/rows")}
    assert there == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_redaction_on_s3_equals_a_local_one_and_copies_there(
    built, local, pipeline, options_file, store, s3, tmp_path, monkeypatch
):
    document = (local / "documents.ids").read_bytes()[-16:].hex()
    (tmp_path / "list").write_text(f"{document}\n")
    flags = ("--documents", tmp_path / "list", "--output")
    assert pipeline("redact", local, *flags, tmp_path / "new") == 0
    requests = []
    call = type(store)._call_s3

    async def counted(self, method, *arguments, **options):
        key = options.get("Key") or next((each.get("Key") for each in arguments), None)
        requests.append((method, str(key)))
        return await call(self, method, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "_call_s3", counted)
        there = ("s3://corpus/redacted", "--storage_options", options_file)
        assert pipeline("redact", built, *flags, *there) == 0
    assert root_hash("s3://corpus/redacted", s3) == root_hash(tmp_path / "new")
    words = ("--absent", tmp_path / "list", "--storage_options", options_file)
    assert pipeline("verify", "s3://corpus/redacted", *words) == 0
    copied = [key for method, key in requests if method == "copy_object"]
    assert len(copied) == 3  # a shard of each pass, and that of validation
    asked = [key for method, key in requests if method == "head_object" and key.endswith(".tar")]
    assert len(asked) == 3 + 2  # one before each copy, and one after each upload
    sent = [key for method, key in requests if method == "put_object" and key.endswith(".tar")]
    assert len(sent) == 2


def test_documents_are_found_on_s3(built, pipeline, options_file, capsys):
    assert pipeline("inspect", built, "--num_instances", 1, "--storage_options", options_file) == 0
    shown = capsys.readouterr().out
    assert "\n  A is from input (en), s3://corpus/text/" in shown
    start = shown.split("documents ")[1].split(" ")[0]
    assert pipeline("inspect", built, "--documents", start, "--storage_options", options_file) == 0
    assert f"{start}" in capsys.readouterr().out.split("\n")[0]


def test_a_deleted_shard_is_built_again_and_the_others_stay(
    built, uploaded, pipeline, options_file, store, s3
):
    expected = root_hash(built, s3)
    lost = "corpus/data/train/L64/pass-01/shard-00001.tar"
    before = store.find("corpus/data/train", detail=True)
    store.rm_file(lost)
    assert pipeline("build", *words_of_build(uploaded), "--storage_options", options_file) == 0
    store.invalidate_cache()
    after = store.find("corpus/data/train", detail=True)
    assert after.keys() == before.keys()
    assert after[lost]["ETag"] == before[lost]["ETag"]
    for name in before:
        is_kept = after[name]["LastModified"] == before[name]["LastModified"]
        assert is_kept or name == lost or not name.endswith(".tar")
    assert root_hash(built, s3) == expected
    assert not store.find("corpus/data/_tasks")


def test_worker_processes_take_credentials_from_the_environment(
    uploaded, local, swift_port, build_arguments, s3
):
    variables = {"AWS_ACCESS_KEY_ID": s3["key"], "AWS_SECRET_ACCESS_KEY": s3["secret"]}
    variables |= {"AWS_ENDPOINT_URL": s3["endpoint_url"], "AWS_DEFAULT_REGION": "us-east-1"}
    words = f"pipeline build --input {uploaded} --output s3://corpus/workers --workers 2".split()
    ran = run([*words, *map(str, build_arguments)], variables | {"AWS_REGION": "us-east-1"})
    assert root_hash("s3://corpus/workers", s3) == root_hash(local)
    assert SECRET not in ran.stdout + ran.stderr


def run(words, variables):
    command = [sys.executable, "-m", *words]
    options = {"env": os.environ | variables, "cwd": ROOT, "timeout": 900}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert ran.returncode == 0, ran.stderr
    return ran


def test_a_run_reads_its_data_from_s3_and_keeps_the_secret(built, s3, tmp_path):
    words = f"trainer pretrain --data {built} --output {tmp_path}/run --model.preset tiny".split()
    words += ["--phases", "[{seq_len: 64, global_batch: 8, steps: 2, peak_lr: 1e-4}]"]
    words += ["--storage_options", json.dumps(s3)]
    ran = run(words, {"CUDA_VISIBLE_DEVICES": ""})
    assert SECRET not in ran.stdout + ran.stderr
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    written = {path.name for path in files}
    assert {"config.yaml", "run.json", "metrics.jsonl", "model.safetensors"} <= written
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_no_secret_is_written_with_a_dataset(built, store):
    names = [*store.find("corpus/data"), *store.find("corpus/tokens")]
    assert "corpus/data/report.json" in names
    assert not [name for name in names if SECRET.encode() in store.cat_file(name)]


def test_wrong_credentials_end_in_one_message_without_them(built, s3, pipeline, capfd):
    wrong = json.dumps(s3 | {"secret": "not-the-secret-0815"})
    assert pipeline("verify", built, "--storage_options", wrong) == 2
    said = capfd.readouterr()
    assert "s3://corpus/data/manifest.json" in said.err
    assert "check the credentials" in said.err
    assert "not-the-secret-0815" not in said.out + said.err
