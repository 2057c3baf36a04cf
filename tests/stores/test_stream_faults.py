"""Training data from a real S3 store and an emulator of Google's, through every fault."""

import os
import threading
from collections import Counter
from itertools import cycle, islice

import fsspec
import pytest
import torch

from pipeline.shards.dataset import open_dataset
from pipeline.shards.manifest import BLOCKS_TABLE
from tests.stores import faulty_proxy
from tests.stores.faulty_proxy import FAULTS, FaultyProxy
from trainer.reading import ranged_read
from trainer.reading.cache import _unsealed
from trainer.reading.ranged_read import ShardReadError
from trainer.reading.settings import Reading
from trainer.stream.step import StepLoader

pytestmark = pytest.mark.engines

SEQ_LEN = 8192
NUM_STEPS = 8
BUCKET = "corpus/faults"
LASTING = 10**9
NAMES = "input_ids cu_seqlens masked_positions masked_labels is_random_next"


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch):
    monkeypatch.setattr(ranged_read, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(ranged_read, "MAX_DELAY_SECONDS", 0.1)
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)


@pytest.fixture(scope="module")
def folder(make_dataset, tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("faults") / "data", train=((60, 45), (50, 37)))


@pytest.fixture(scope="module")
def on_s3(folder, s3):
    fsspec.filesystem("s3", **s3).put(f"{folder}/", f"{BUCKET}/", recursive=True)
    return f"s3://{BUCKET}"


@pytest.fixture(scope="module", params=["s3", "gs"])
def store(request, folder):
    """URL of the dataset on a store, the store's port, and storage options."""
    if request.param == "s3":
        return tuple(map(request.getfixturevalue, ("on_s3", "swift_port", "s3")))
    options = request.getfixturevalue("gcs")
    fsspec.filesystem("gs", **options).put(f"{folder}/", f"{BUCKET}/", recursive=True)
    return f"gs://{BUCKET}", int(os.environ["STORAGE_EMULATOR_HOST"].rpartition(":")[2]), options


@pytest.fixture
def through(store):
    """through(fault, count, files): the proxy, and the dataset seen through it."""
    url, port, options = store
    proxies = []

    def start(fault, count, files=".tar"):
        proxy = FaultyProxy(port, fault, count, files=files)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        proxies.append(proxy)
        endpoint = f"http://127.0.0.1:{proxy.server_address[1]}"
        return proxy, open_dataset(url, options | {"endpoint_url": endpoint})

    yield start
    for proxy in proxies:
        proxy.shutdown()
        proxy.server_close()


def batches(dataset, settings):
    sizes = {"rank": 0, "world_size": 1, "global_batch": 16, "micro_tokens": SEQ_LEN}
    sizes |= {"seed": 3, "num_lanes": 4}
    with StepLoader(dataset, "train", SEQ_LEN, **sizes, reading=settings) as loader:
        return [micro for step in islice(loader, NUM_STEPS) for micro in step.micro_batches]


@pytest.fixture(scope="module")
def clean(folder):
    return batches(open_dataset(str(folder)), Reading())


def assert_same(found, expected):
    assert len(found) == len(expected) >= NUM_STEPS
    for one, other in zip(found, expected, strict=True):
        for name in NAMES.split():
            assert torch.equal(getattr(one, name), getattr(other, name)), name


def settings_for(fault, tmp_path, cached, budget_seconds):
    seconds = {"timeout_seconds": 0.5 if fault is faulty_proxy.stall else 10.0}
    seconds["budget_seconds"] = budget_seconds
    sizes = {"num_threads": 2, "max_read_bytes": 6000, "buffer_bytes": 40_000}
    return Reading(**seconds, **sizes, cache_dir=str(tmp_path / "cache") if cached else None)


@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_passing_fault_changes_nothing(through, clean, tmp_path, fault, cached):
    proxy, dataset = through(fault, 2)
    assert_same(batches(dataset, settings_for(fault, tmp_path, cached, 300.0)), clean)
    assert proxy.spoiled == 2


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_lasting_fault_is_one_error_that_names_the_place(through, store, tmp_path, fault):
    proxy, dataset = through(fault, LASTING)
    with pytest.raises(ShardReadError) as caught:
        # Sound answers come in time on a busy machine.
        batches(dataset, settings_for(fault, tmp_path, False, 6.0))
    said = str(caught.value)
    assert said.startswith(f"{store[0]}/train/L8192/pass-0")
    assert ".tar, blocks " in said
    assert "(bytes " in said
    assert "gave up after " in said
    assert " attempts in " in said
    assert proxy.has_spoiled.wait(120)  # a busy machine may answer when nobody waits any more


def wrong_byte_of_a_page(handler, status, headers, data):
    """In a column of the table, and not in the footer."""
    handler.send(status, headers, data[:30] + bytes([data[30] ^ 16]) + data[31:])


TABLE_FAULTS = [
    wrong_byte_of_a_page if fault is faulty_proxy.wrong_byte else fault for fault in FAULTS
]


@pytest.mark.parametrize("fault", TABLE_FAULTS, ids=lambda fault: fault.__name__)
def test_a_passing_fault_with_the_block_table_changes_nothing(through, clean, tmp_path, fault):
    proxy, dataset = through(fault, 2, BLOCKS_TABLE)
    assert_same(batches(dataset, settings_for(fault, tmp_path, False, 30.0)), clean)
    assert proxy.spoiled == 2


@pytest.mark.parametrize("fault", TABLE_FAULTS, ids=lambda fault: fault.__name__)
def test_a_lasting_fault_with_the_block_table_is_one_error_that_names_it(
    through, store, tmp_path, fault
):
    _, dataset = through(fault, LASTING, BLOCKS_TABLE)
    with pytest.raises(ShardReadError) as caught:
        batches(dataset, settings_for(fault, tmp_path, False, 2.5))
    said = str(caught.value)
    assert said.startswith(f"{store[0]}/train/L8192/pass-0")
    assert ".tar, its rows of blocks.parquet: gave up after " in said
    assert " attempts in " in said


def test_a_lasting_fault_leaves_nothing_in_the_cache(through, clean, tmp_path):
    _, dataset = through(faulty_proxy.other_object, LASTING)
    settings = settings_for(faulty_proxy.other_object, tmp_path, True, 30.0)
    with pytest.raises(ShardReadError, match=r"gave up after 3 attempts .* crc32 of its"):
        batches(dataset, settings)
    kept = [path.read_bytes() for path in (tmp_path / "cache/stretches").iterdir()]
    assert all(map(_unsealed, kept)), "something else than tables, which the store gave as they are"
    proxy, dataset = through(None, 0)
    assert_same(batches(dataset, settings), clean)
    asked = proxy.requests
    assert_same(batches(dataset, settings), clean)
    assert proxy.requests == asked > 0


def test_a_storm_over_every_second_answer_changes_nothing(through, clean, tmp_path):
    """Of each range every second answer, the first included: no range fails three times."""
    proxy, dataset = through(None, LASTING)
    asked, faults = Counter(), cycle(fault for fault in FAULTS if fault is not faulty_proxy.stall)

    def every_second(handler, status, headers, data):
        place = handler.path, handler.headers["Range"]
        asked[place] += 1
        fault = next(faults) if asked[place] % 2 else type(handler).send
        fault(handler, status, headers, data)

    proxy.fault = every_second
    assert_same(batches(dataset, settings_for(None, tmp_path, False, 60.0)), clean)
    assert sum(count > 1 for count in asked.values()) > len(FAULTS)
