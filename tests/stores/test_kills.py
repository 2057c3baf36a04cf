"""Builds killed from outside, and what killed writers leave."""

import json
import os
import shutil
import subprocess
import sys
import time

import fsspec
import pytest

from pipeline.shards.dataset import open_dataset
from pipeline.storage.local import TEMPORARY_MARK
from scripts.soak.kill_build import Soak, identity
from scripts.soak.kills import kill_session
from tests.stores.conftest import ROOT, root_hash

pytestmark = pytest.mark.engines


def test_a_build_on_s3_killed_between_shards_goes_on_from_another_machine(
    corpus, local, pipeline, build_arguments, s3, tmp_path, monkeypatch
):
    """All that the first launcher had on its own disk is gone: home, TMPDIR, working folder."""
    store, options = fsspec.filesystem("s3", **s3), tmp_path / "s3.json"
    options.write_text(json.dumps(s3))
    folders = f"--input {corpus} --output s3://corpus/killed --storage_options @{options}".split()
    command = [sys.executable, "-m", "pipeline", "build", "--workers", "2"]
    words = [*command, *folders, *map(str, build_arguments)]
    places = own_places(tmp_path / "first")
    environment = os.environ | {"PYTHONPATH": str(ROOT), **places}
    cwd, quiet = places["HOME"], subprocess.DEVNULL
    process = subprocess.Popen(
        words, cwd=cwd, env=environment, stderr=quiet, start_new_session=True
    )
    try:
        began = time.monotonic()
        while not (finished := records_of(store)):
            assert process.poll() is None, "the build ended before it was killed"
            assert time.monotonic() - began < 600
            time.sleep(0.02)
    finally:
        kill_session(process.pid)
        process.wait()
    assert list((tmp_path / "first/tmp").iterdir()), "the first launcher kept files there"
    shutil.rmtree(tmp_path / "first")
    places = own_places(tmp_path / "second")
    for name, place in places.items():
        monkeypatch.setenv(name, place)
    monkeypatch.setattr("tempfile.tempdir", places["TMPDIR"])
    monkeypatch.chdir(places["HOME"])
    before = {name: store.info(name)["LastModified"] for name in finished}
    assert pipeline("build", *folders) == 0
    store.invalidate_cache()
    assert {name: store.info(name)["LastModified"] for name in finished} == before
    assert root_hash("s3://corpus/killed", s3) == root_hash(local)
    there = {name.removeprefix("corpus/killed/") for name in store.find("corpus/killed")}
    assert there == files_of(local)


def own_places(folder):
    """A home and a folder for temporary files, by the variables that name them."""
    places = {"HOME": folder / "home", "TMPDIR": folder / "tmp"}
    for place in places.values():
        place.mkdir(parents=True)
    return {name: str(place) for name, place in places.items()}


def files_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def records_of(store):
    """The shards whose tasks are recorded as finished."""
    store.invalidate_cache()
    names = [name.replace("/_tasks", "") for name in store.find("corpus/killed/_tasks")]
    return [name.removesuffix(".json") for name in names if name.endswith(".tar.json")]


def test_a_finished_build_has_no_leftovers_of_killed_writers(local, corpus, pipeline, tmp_path):
    output = shutil.copytree(local, tmp_path / "data")
    mark = f"{TEMPORARY_MARK}4711-0123abcd"
    left = ["train/L64/pass-00/.shard-00000.tar", ".manifest.json", "tokens/.tokens.json"]
    # The last was killed after the manifest, before the clean-up.
    names = [*(name + mark for name in left), "_tasks/train/L64/pass-00/shard-00000.tar.json"]
    for path in (output / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    written = {path: path.stat().st_mtime_ns for path in output.rglob("shard-*.tar")}
    assert pipeline("build", "--input", corpus, "--output", output) == 0
    assert files_of(output) == files_of(local)
    assert {path: path.stat().st_mtime_ns for path in output.rglob("shard-*.tar")} == written
    assert open_dataset(str(output)).manifest == open_dataset(str(local)).manifest


def test_the_soak_notices_what_is_left_missing_and_redone(tmp_path):
    """The check of the kill tests itself can fail."""
    soak = object.__new__(Soak)
    soak.root_hash, soak.files = "1234", {"manifest.json", "a.tar", "b.tar"}
    (tmp_path / "manifest.json").write_text('{"root_hash": "1234"}')
    for name in ("a.tar", ".b.tar.partial-1-0"):
        (tmp_path / name).write_text("half")
    kept = {"a.tar": identity(tmp_path / "a.tar")}
    assert soak._compare(tmp_path, kept) == ["left behind: .b.tar.partial-1-0", "missing: b.tar"]
    (tmp_path / "b.tar").write_text("b")
    (tmp_path / ".b.tar.partial-1-0").unlink()
    assert soak._compare(tmp_path, kept) == []
    (tmp_path / "new").write_text("a")
    (tmp_path / "new").replace(tmp_path / "a.tar")
    assert soak._compare(tmp_path, kept) == ["redone: a.tar"]
