"""Training data from a real S3 store and an emulator of Google's, through every fault."""

import os
from collections import Counter
from itertools import cycle, islice

import fsspec
import pytest

from pipeline.shards.dataset import open_dataset
from pipeline.shards.manifest import BLOCKS_TABLE
from tests.stores.conftest import assert_same
from tests.stores.faulty_proxy import FAULTS, stall
from tests.trainer.step_loader import load_steps
from trainer.stream.reading import ranged_read
from trainer.stream.reading.cache import _without_crc32
from trainer.stream.reading.ranged_read import ShardReadError
from trainer.stream.reading.settings import Reading

pytestmark = pytest.mark.engines

SEQ_LEN = 8192
NUM_STEPS = 8
BUCKET = "corpus/faults"
LASTING = 10**9


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch):
    monkeypatch.setattr(ranged_read, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(ranged_read, "MAX_DELAY_SECONDS", 0.5)
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)


@pytest.fixture(scope="module")
def folder(make_dataset, tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("faults") / "data", train=((60, 45), (50, 37)))


@pytest.fixture(scope="module")
def on_s3(folder, s3):
    fsspec.filesystem("s3", **s3).put(f"{folder}/", f"{BUCKET}/", recursive=True)
    return f"s3://{BUCKET}"


@pytest.fixture(scope="module")
def store(request, folder):
    """URL of the dataset on a store, the store's port, and storage options."""
    if request.param == "s3":
        return tuple(map(request.getfixturevalue, ("on_s3", "swift_port", "s3")))
    options = request.getfixturevalue("gcs")
    fsspec.filesystem("gs", **options).put(f"{folder}/", f"{BUCKET}/", recursive=True)
    return f"gs://{BUCKET}", int(os.environ["STORAGE_EMULATOR_HOST"].rpartition(":")[2]), options


@pytest.fixture
def through(store, start_proxy):
    """through(fault, count, files): the proxy, and the dataset seen through it."""
    url, port, options = store

    def start(fault, count, files=".tar"):
        proxy = start_proxy(port, fault, count, files=files)
        endpoint = f"http://127.0.0.1:{proxy.server_address[1]}"
        return proxy, open_dataset(url, options | {"endpoint_url": endpoint})

    return start


def batches(dataset, settings):
    sizes = {"rank": 0, "world_size": 1, "global_batch": 16, "micro_tokens": SEQ_LEN}
    sizes |= {"seed": 3, "num_lanes": 4}
    with load_steps(dataset, "train", SEQ_LEN, **sizes, reading=settings) as loader:
        return [micro for step in islice(loader, NUM_STEPS) for micro in step.micro_batches]


@pytest.fixture(scope="module")
def clean(folder):
    return batches(open_dataset(str(folder)), Reading())


def settings_for(fault, tmp_path, cached, budget_seconds):
    seconds = {"timeout_seconds": 0.5 if fault is stall else 10.0}
    seconds["budget_seconds"] = budget_seconds
    sizes = {"num_threads": 2, "max_read_bytes": 6000, "buffer_bytes": 40_000}
    return Reading(**seconds, **sizes, cache_dir=str(tmp_path / "cache") if cached else None)


# What lies above a store's driver is tried on one of the two.
@pytest.mark.parametrize(
    ("store", "files", "cached"),
    [
        ("s3", ".tar", False),
        ("gs", ".tar", False),
        ("gs", ".tar", True),
        ("gs", BLOCKS_TABLE, False),
    ],
    indirect=["store"],
    scope="module",
    ids=["s3", "gs", "cached", "table"],
)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_passing_fault_changes_nothing(through, clean, tmp_path, fault, files, cached):
    proxy, dataset = through(fault, 2, files)
    assert_same(batches(dataset, settings_for(fault, tmp_path, cached, 300.0)), clean, NUM_STEPS)
    assert proxy.spoiled == 2


@pytest.mark.parametrize(
    ("store", "files", "place", "seconds"),
    [
        # Sound answers come in time on a busy machine.
        ("s3", ".tar", r"blocks .*\(bytes .*", 6.0),
        ("gs", ".tar", r"blocks .*\(bytes .*", 6.0),
        ("gs", BLOCKS_TABLE, r"its rows of blocks\.parquet: ", 2.5),
    ],
    indirect=["store"],
    scope="module",
    ids=["s3", "gs", "table"],
)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_lasting_fault_is_one_error_that_names_the_place(
    through, store, tmp_path, fault, files, place, seconds
):
    proxy, dataset = through(fault, LASTING, files)
    said = rf"(?s)^{store[0]}/train/L8192/pass-0.*\.tar, {place}gave up after .* attempts in "
    with pytest.raises(ShardReadError, match=said):
        batches(dataset, settings_for(fault, tmp_path, False, seconds))
    assert proxy.has_spoiled.wait(120)  # a busy machine may answer when nobody waits any more


@pytest.mark.parametrize("store", ["gs"], indirect=True, scope="module")
def test_a_lasting_fault_leaves_nothing_in_the_cache(through, clean, tmp_path):
    _, dataset = through(FAULTS["other_object"], LASTING)
    settings = settings_for(None, tmp_path, True, 30.0)
    with pytest.raises(ShardReadError, match=r"gave up after 3 attempts .* crc32 of its"):
        batches(dataset, settings)
    kept = [path.read_bytes() for path in (tmp_path / "cache/stretches").iterdir()]
    assert all(map(_without_crc32, kept)), (
        "something else than tables, which the store gave as they are"
    )
    proxy, dataset = through(None, 0)
    assert_same(batches(dataset, settings), clean, NUM_STEPS)
    asked = proxy.requests
    assert_same(batches(dataset, settings), clean, NUM_STEPS)
    assert proxy.requests == asked > 0


@pytest.mark.parametrize("store", ["s3", "gs"], indirect=True, scope="module")
def test_a_storm_over_every_second_answer_changes_nothing(through, clean, tmp_path):
    """Of each range every second answer, the first included: no range fails three times."""
    proxy, dataset = through(None, LASTING)
    asked, faults = Counter(), cycle(fault for fault in FAULTS.values() if fault is not stall)

    def every_second(handler, status, headers, data):
        place = handler.path, handler.headers["Range"]
        asked[place] += 1
        fault = next(faults) if asked[place] % 2 else type(handler).send
        fault(handler, status, headers, data)

    proxy.fault = every_second
    assert_same(batches(dataset, settings_for(None, tmp_path, False, 60.0)), clean, NUM_STEPS)
    assert sum(count > 1 for count in asked.values()) > len(FAULTS)
