"""Block tables of a build that is followed: read as needed, found wherever the build puts them."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from pipeline.shards import block_tables
from pipeline.shards.block_tables import blocks_table
from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.growing import (
    PLAN,
    RECORDS,
    UNKNOWN_HASH,
    GrowingDataset,
    ShardBlocks,
    open_growing,
    publish_pass,
    withdraw_passes,
)
from pipeline.shards.manifest import group_totals, root_hash
from pipeline.shards.records import BlockTable, Shard
from pipeline.stages.publish import Built, planned_groups, publish_dataset
from pipeline.storage.folder import Folder

NUM_PASSES = 6
FIRST = "train/L8192/pass-00"


class Build:
    """Publishes in `folder` what a build does that ends as the dataset `whole`, without shards."""

    def __init__(self, whole: Dataset, folder: Path) -> None:
        self.whole, self.folder = whole, folder
        self.place = Folder(str(folder))

    def rows(self, *passes: int) -> list[ShardBlocks]:
        shards = [shard for number in passes for shard in self.shards(number)]
        return [(shard, self.whole.blocks(shard)) for shard in shards]

    def shards(self, number: int, split: str = "train") -> list[Shard]:
        return self.whole.shards(split, 8192, number)

    def built(self, shards: Sequence[Shard]) -> Built:
        return {shard.name: (shard, partial(self.whole.blocks, shard)) for shard in shards}

    def plan(self) -> None:
        shards = [shard for number in range(NUM_PASSES) for shard in self.shards(number)]
        fields = {"groups": planned_groups([], self.built(shards)), "root_hash": UNKNOWN_HASH}
        self.place.write(PLAN, dataclasses.replace(self.whole.manifest, **fields).to_json())

    def publish(self, *passes: int) -> None:
        for number in passes:
            publish_pass(self.place, self.rows(number), self.whole.manifest.settings_hash)

    def end(self, *passes: int) -> None:
        """As the last step of a build does, of these passes and what is held out."""
        shards = [shard for shard, _ in self.rows(*passes)] + self.shards(0, "validation")
        totals = {"groups": group_totals(shards), "root_hash": root_hash(shards)}
        manifest = dataclasses.replace(self.whole.manifest, **totals)
        publish_dataset(self.place, self.built(shards), manifest)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, make_dataset) -> Dataset:
    sizes = [(20 + number, 9, 30 - number) for number in range(NUM_PASSES)]
    folder = tmp_path_factory.mktemp("whole") / "data"
    return open_dataset(str(make_dataset(folder, sizes, validation=(17, 5))))


@pytest.fixture
def build(whole, tmp_path) -> Build:
    build = Build(whole, tmp_path / "data")
    build.plan()
    return build


@pytest.fixture(params=["whole", "groups"])
def way(request, monkeypatch) -> str:
    """How tables are read: as one file, or a row group at a time, which here is a shard or two."""
    if request.param == "groups":
        monkeypatch.setattr(block_tables, "WHOLE_BYTES", 100)
        monkeypatch.setattr(block_tables, "ROWS_PER_GROUP", 4)
    return request.param


def follow(build: Build, *passes: int) -> GrowingDataset:
    followed = open_growing(str(build.folder))
    assert isinstance(followed, GrowingDataset)
    for number in passes:
        assert followed.find_pass("train", 8192, number)
    return followed


def columns(table: BlockTable) -> list[list[int]]:
    return [getattr(table, field.name).tolist() for field in dataclasses.fields(table)]


def assert_found(followed: Dataset, build: Build, *passes: int) -> None:
    for number in passes:
        assert followed.shards("train", 8192, number) == build.shards(number)
        for shard in build.shards(number):
            assert columns(followed.blocks(shard)) == columns(build.whole.blocks(shard))


def test_blocks_are_found_when_the_build_has_taken_its_records_away(build, way, monkeypatch):
    """The finished dataset is opened once for all its passes."""
    opened = []
    monkeypatch.setattr(
        "pipeline.shards.growing.open_dataset",
        lambda *where: (opened.append(where), open_dataset(*where))[1],
    )
    build.publish(0, 1)
    followed = follow(build, 0, 1)
    build.end(*range(NUM_PASSES))
    assert not (build.folder / RECORDS).exists()
    for number in range(NUM_PASSES):
        assert followed.find_pass("train", 8192, number)
    assert_found(followed, build, *range(NUM_PASSES))
    assert len(opened) == 1


def test_blocks_are_found_when_passes_have_been_added(build, way):
    """In the new table those of the validation split have other rows."""
    build.end(0, 1)
    build.plan()
    followed = follow(build, 0)
    assert followed.find_pass("validation", 8192, 0)
    assert not followed.find_pass("train", 8192, 2)
    build.publish(2)
    assert followed.find_pass("train", 8192, 2)
    build.end(0, 1, 2)
    assert_found(followed, build, 0, 2)
    for shard in followed.shards("validation", 8192, 0):
        assert columns(followed.blocks(shard)) == columns(build.whole.blocks(shard))


def test_blocks_of_a_pass_withdrawn_are_missing_until_it_is_published_again(build, monkeypatch):
    monkeypatch.setattr(block_tables, "WHOLE_BYTES", 100)  # something is read for each shard
    build.publish(0)
    followed = follow(build, 0)
    withdraw_passes(build.place, [FIRST])
    with pytest.raises(FileNotFoundError, match=r"blocks\.parquet"):
        followed.blocks(build.shards(0)[2])
    build.publish(0)
    assert_found(followed, build, 0)


def test_a_pass_that_was_built_again_with_other_instances_is_refused(build, monkeypatch):
    monkeypatch.setattr(block_tables, "WHOLE_BYTES", 100)
    build.publish(0)
    followed = follow(build, 0)
    [(first, table), *others] = build.rows(0)
    other = dataclasses.replace(first, content_hash="0" * 64)
    monkeypatch.setattr(build, "rows", lambda _: [(other, table), *others])
    build.end(0)
    said = f"{FIRST} was built again with other instances than it had; begin this"
    for _ in range(2):
        with pytest.raises(ValueError, match=said):
            followed.blocks(build.shards(0)[2])


def write_blocks(build: Build, data: bytes) -> None:
    """Publishes a pass with another block table."""
    build.publish(0)
    (build.folder / RECORDS / FIRST / "blocks.parquet").write_bytes(data)


def test_a_damaged_or_foreign_table_is_refused_when_its_pass_is_found(build, way):
    fewer = blocks_table([table for _, table in build.rows(0)][:-1])
    for data, said in (
        (b"PAR1" * 50, "a damaged Parquet table"),
        (fewer[:-20], "a damaged Parquet table"),
        (fewer, "5 rows, expected 9 for the blocks of 3 shards"),
    ):
        write_blocks(build, data)
        with pytest.raises(ValueError, match=f"blocks.parquet: {said}"):
            follow(build, 0)


def test_a_table_that_does_not_describe_a_shard_is_refused_when_that_is_asked_for(build, way):
    *tables, last = [table for _, table in build.rows(0)]
    spoilt = dataclasses.replace(last, offset=last.offset[::-1].copy())
    write_blocks(build, blocks_table([*tables, spoilt]))
    followed = follow(build, 0)
    first, second, third = build.shards(0)
    assert columns(followed.blocks(first)) == columns(tables[0])
    with pytest.raises(ValueError, match=f"rows of {third.name} do not describe it"):
        followed.blocks(third)
    assert columns(followed.blocks(second)) == columns(tables[1])
