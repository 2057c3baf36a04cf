"""Reading ahead: every fault of a store is mended or named, and never costs an instance."""

import json
import time
from itertools import chain, islice, pairwise, repeat
from threading import Event
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.storage.folder import Folder
from tests.datasets import write_dataset
from trainer.stream.reading import block_reader, ranged_read
from trainer.stream.reading.block_reader import BlockReader, plan_rows
from trainer.stream.reading.ranged_read import Attempts, ShardReadError, retry
from trainer.stream.reading.settings import Reading

QUICK = Reading(timeout_seconds=0.3, budget_seconds=2.0, num_threads=2)


class FaultyFolder(Folder):
    """Local files; each fault spoils one read of a shard."""

    def _cat(self, path, start, stop):
        data = super()._cat(path, start, stop)
        if not path.endswith(".tar"):
            return data
        self.__dict__["shard_reads"] += 1
        fault = next(self.faults, bytes)
        if isinstance(fault, Exception):
            raise fault
        return fault(data)


def stall(data):
    time.sleep(5.0)
    return data


FAULTS = [
    (lambda data: data[: len(data) // 2], "asked for bytes 512-"),
    (lambda data: bytes([data[0] ^ 1]) + data[1:], "crc32 of its"),
    (ConnectionResetError("connection reset by peer"), "connection reset by peer"),
    (LookupError("a driver's own kind of error: 503 SlowDown"), "503 SlowDown"),
    (json.JSONDecodeError("Expecting value", "<html>", 0), "Expecting value"),
    (stall, "no answer within 0."),
]


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(ranged_read, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(ranged_read, "MAX_DELAY_SECONDS", 0.1)


@pytest.fixture
def folder(tmp_path, make_dataset):
    return make_dataset(tmp_path / "dataset", train=((60, 45),))


def over_faulty_store(folder, faults):
    good, faulty = open_dataset(str(folder)), FaultyFolder(str(folder))
    faulty.__dict__.update(faults=iter(faults), shard_reads=0)
    return Dataset(faulty, good.manifest, list(good.all_shards)), faulty


def each_block(*sizes):
    """One step for every block of 8 instances, in order: shard, block, start, stop."""
    blocks = [(s, n, 8 * b) for s, n in enumerate(sizes) for b in range(-(-n // 8))]
    return [np.array([[s, first // 8, 0, min(8, n - first)]]) for s, n, first in blocks]


EVERY_BLOCK = each_block(60, 45)
EVERYTHING = [*range(60), *range(100_000, 100_045)]


class Read:
    """Steps read by a reader of its own: the document ids of each, known by its rows' tokens."""

    def __init__(self, dataset, reading=QUICK, steps=EVERY_BLOCK, min_steps=2):
        shards = [(dataset, shard) for shard in dataset.shards("train", 8192, 0)]
        self.reader, self._documents = BlockReader(shards, reading), {}
        self._get, self.reader.get = self.reader.get, self._name_rows
        planned = (plan_rows(*step.T) for step in steps)
        self._groups = self.reader.steps(planned, min_steps)

    def __iter__(self):
        for group, block in self._groups:
            rows = map(self._documents.get, rows_of(block))
            for step in group:
                yield [*islice(rows, step.num_rows)]
        self.reader.close()

    def _name_rows(self, key):
        block = self._get(key)
        self._documents |= zip(rows_of(block), block.document_a.tolist(), strict=True)
        return block


def rows_of(block):
    ends = pairwise(block.offsets.tolist())
    return [block.input_ids[start:stop].tobytes() for start, stop in ends]


def read_all(*arguments):
    return [*chain(*Read(*arguments))]


def second_shard(folder):
    """Its block table, its path and its bytes."""
    dataset = open_dataset(str(folder))
    shard = dataset.shards("train", 8192, 0)[1]
    return dataset.blocks(shard), folder / shard.name, bytearray((folder / shard.name).read_bytes())


def test_blocks_come_in_order_and_neighbours_in_one_request(folder):
    read = Read(open_dataset(str(folder)))
    assert [*chain(*read)] == EVERYTHING
    assert (read.reader.blocks, read.reader.requests) == (14, 2)


def test_requests_stay_below_their_size(folder):
    dataset = open_dataset(str(folder))
    table = dataset.blocks(dataset.shards("train", 8192, 0)[0])
    two_blocks = int(table.offset[1] + table.size[1] - table.offset[0])
    read = Read(dataset, Reading(max_read_bytes=two_blocks + 600))
    assert [*chain(*read)] == EVERYTHING
    assert 7 <= read.reader.requests <= 9


def test_a_step_does_not_wait_for_blocks_of_later_ones(folder):
    steps = [np.array([[0, 0, 0, 8]]), np.array([[1, 0, 0, 8]])]
    (folder / "train/L8192/pass-00/shard-00001.tar").unlink()
    found = iter(Read(open_dataset(str(folder)), QUICK, steps))
    assert next(found) == list(range(8))
    with pytest.raises(FileNotFoundError, match=r"shard-00001.tar.* is missing"):
        next(found)


def test_memory_is_bounded_and_blocks_are_released(folder):
    dataset = open_dataset(str(folder))
    shards = dataset.shards("train", 8192, 0)
    most = max(int(dataset.blocks(shard).size.max()) for shard in shards)
    read = Read(dataset, Reading(buffer_bytes=8 * most, num_threads=2))  # 4 blocks, unpacked
    held = [2 * most * len(read.reader._held) for _ in read]
    assert max(held) <= 12 * most
    assert not read.reader._held
    assert 3 <= read.reader.requests <= 7


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_steps_are_the_planned_rows_whatever_is_planned_and_held_together(
    folder, monkeypatch, data
):
    gathered = data.draw(st.sampled_from([1, 20, 4096]))
    monkeypatch.setattr(block_reader, "GATHERED_TOKENS", 8192 * gathered)
    monkeypatch.setattr(block_reader, "LOOKAHEAD_STEPS", data.draw(st.sampled_from([1, 4, 512])))
    rows = st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(0, 3), st.integers(4, 5))
    steps = data.draw(st.lists(st.lists(rows, min_size=1, max_size=6).map(np.array), max_size=30))
    reading = Reading(buffer_bytes=data.draw(st.sampled_from([1, 10_000, 2**20])), num_threads=2)
    read = Read(open_dataset(str(folder)), reading, steps, data.draw(st.integers(1, 8)))
    expected = [
        [
            100_000 * shard + 8 * block + n
            for shard, block, start, stop in step.tolist()
            for n in range(start, stop)
        ]
        for step in steps
    ]
    assert [*read] == expected
    assert not read.reader._held


@pytest.mark.parametrize("fault", [fault for fault, _ in FAULTS])
def test_a_passing_fault_is_mended(folder, fault):
    dataset, store = over_faulty_store(folder, [fault, fault])
    reading = Reading(num_threads=2, timeout_seconds=2.0 if fault is stall else 60.0)
    assert read_all(dataset, reading) == EVERYTHING
    assert store.shard_reads == 4 or (fault is stall and store.shard_reads > 4), "or it stalls too"


@pytest.mark.parametrize(("fault", "cause"), FAULTS)
def test_a_lasting_fault_is_named(folder, fault, cause):
    dataset, store = over_faulty_store(folder, repeat(fault))
    with pytest.raises(ShardReadError) as caught:
        read_all(dataset)
    shard = f"{folder}/train/L8192/pass-00/shard-00000.tar"
    for said in (f"{shard}, blocks 0 to 7 (bytes 512-", "gave up after", "attempts in", cause):
        assert said in str(caught.value)
    assert store.shard_reads >= 2


def test_one_wrong_byte_on_disk_names_its_block(folder):
    table, path, content = second_shard(folder)
    content[int(table.offset[3]) + 100] ^= 4
    path.write_bytes(content)
    said = f"shard-00001.tar, block 3 at byte {table.offset[3]}: crc32"
    with pytest.raises(ShardReadError, match=said):
        read_all(open_dataset(str(folder)))


def test_a_file_cut_at_a_record_is_an_error(folder):
    table, path, content = second_shard(folder)
    path.write_bytes(content[: int(table.offset[4]) - 512])
    said = r"shard-00001.tar, blocks 0 to 5 .*asked for bytes 512-\d+, got .*: the file is cut"
    with pytest.raises(ShardReadError, match=said):
        read_all(open_dataset(str(folder)), Reading())  # at once, whatever patience there is


def test_a_refusal_has_the_patience_of_a_key_in_renewal(monkeypatch):
    """Time passes only while somebody waits."""
    waits = [0.0]
    monkeypatch.undo()
    monkeypatch.setattr(ranged_read, "time", SimpleNamespace(monotonic=lambda: sum(waits)))
    tried = Attempts("here", Reading(), SimpleNamespace(wait=waits.append))
    said = r"here: gave up after \d+ attempts in 30.0 s: 403"
    with pytest.raises(ShardReadError, match=said):
        retry(Mock(side_effect=PermissionError("403")), tried)
    assert sum(waits) == pytest.approx(30.0)


def test_a_position_outside_its_instance_is_refused_with_right_crc32(
    tmp_path, make_block, monkeypatch
):
    blocks = [make_block(8, first_id=8 * n) for n in range(3)]
    positions, last = blocks[2].masked_lm_positions, int(blocks[2].masked_offsets[6])
    positions[last] = length = int(np.diff(blocks[2].offsets)[6])  # the first token of instance 7
    shards = {("train", 8192, 0, 0): blocks}
    folder = write_dataset(tmp_path / "dataset", shards, 100, {"lower_case": True})
    monkeypatch.setattr(block_reader, "GATHERED_TOKENS", 1)
    found = iter(Read(open_dataset(str(folder)), QUICK, each_block(24)))
    assert [next(found)[0] for _ in range(2)] == [0, 8]
    said = rf"block 2 at byte \d+, instance 6: masked_lm_position {length} should be below {length}"
    with pytest.raises(ValueError, match=said):
        next(found)


def test_retrying_stops_when_the_stream_is_closed():
    stop = Event()
    stop.set()
    with pytest.raises(ShardReadError, match="gave up after 1 attempts"):
        retry(Mock(side_effect=OSError), Attempts("here", Reading(), stop))


def test_threads_that_wait_forever_do_not_hold_up_the_others(folder):
    """As many requests hang as there are threads: each is made again by a new one."""
    answer = Event()

    def hang(data):
        answer.wait(600)
        return data

    dataset, _ = over_faulty_store(folder, [hang, hang])
    settings = Reading(timeout_seconds=0.3, budget_seconds=300, num_threads=2, max_read_bytes=1)
    assert read_all(dataset, settings) == EVERYTHING
    answer.set()
