"""A dataset whose build is still running: what the builder publishes before the manifest, and a reader that follows.

    _tasks/plan.json                           the manifest as known at the start; totals are 0
    _tasks/train/L128/pass-00/blocks.parquet   where the blocks of a complete pass lie
    train/L128/pass-00/pass.json               its shards; written after its blocks.parquet

When manifest.json is there, _tasks/ goes.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar

from pipeline.shards.block_tables import BlockTables, Keep, blocks_table
from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.manifest import (
    BLOCKS_TABLE,
    MANIFEST,
    parse_manifest,
    parse_pass_json,
    pass_folder,
    pass_hash,
    pass_json,
)
from pipeline.shards.records import BlockTable, Manifest, Shard
from pipeline.storage.faults import ATTEMPTS, SizeError, StorageError, reread_damaged
from pipeline.storage.folder import Folder

RECORDS = "_tasks"
PLAN = f"{RECORDS}/plan.json"
UNKNOWN_HASH = "0" * 64
"""The root hash of a plan."""
MAX_OPEN_TABLES = 4
"""Passes of which the block tables are kept open, with some 8 MiB in memory each; training is at one or two."""

FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 30.0
_LOOKING_SECONDS = 5.0
"""Threads that miss a pass wait so long for the one that looks for it; its request may hang for ever."""

Found = TypeVar("Found")
ShardBlocks = tuple[Shard, BlockTable]
FindBlocks = Callable[[Shard, int], BlockTable]
"""`Dataset.blocks` for the shards of a pass."""


def publish_pass(folder: Folder, rows: Sequence[ShardBlocks], settings_hash: str) -> None:
    """Makes a complete pass readable before the manifest is there; pass.json comes last and says so."""
    ordered = sorted(rows, key=lambda row: row[0].name)
    name = _folder(ordered[0][0])
    folder.write(_blocks_name(name), blocks_table([table for _, table in ordered]))
    data = pass_json([shard for shard, _ in ordered], settings_hash)
    folder.write(f"{name}/pass.json", data)


def withdraw_passes(folder: Folder, passes: Sequence[str]) -> None:
    """Takes back what `publish_pass` wrote, where a shard of the pass was lost and is built again."""
    files = folder.list()
    names = [f"{each}/pass.json" for each in passes] + [_blocks_name(each) for each in passes]
    folder.remove([name for name in names if name in files])


@dataclass(frozen=True, eq=False)
class _Published:
    """A pass published before the manifest.

    Attributes:
        blocks_name: Name of its blocks.parquet.
        num_bytes: Size of that file.
        shards: Its shards, in its order.
        row: The row of each shard in it, by name.
    """

    blocks_name: str
    num_bytes: int
    shards: list[Shard]
    row: Mapping[str, int]


class GrowingDataset(Dataset):
    """A dataset whose passes appear one after another. Its manifest is the plan of the build: totals are 0."""

    def __init__(self, folder: Folder, plan: Manifest) -> None:
        super().__init__(folder, plan, [])
        self._find_blocks: dict[str, FindBlocks] = {}  # by pass folder
        self._open_tables = lru_cache(maxsize=MAX_OPEN_TABLES)(self._new_tables)
        self._finished: Dataset | None = None
        self._growing = threading.Lock()
        self._looking = threading.Lock()

    def blocks(
        self,
        shard: Shard,
        attempts: int = ATTEMPTS,
        keep: Keep | None = None,  # noqa: ARG002
    ) -> BlockTable:
        """Where the blocks of a shard of a pass found lie; as `Dataset.blocks`, and nothing is kept.

        The build takes away what it published of a pass when it ends, and writes blocks.parquet
        anew when more passes are added, so what is not there or does not fit is looked for once
        more.
        """
        find = self._find_blocks[_folder(shard)]
        try:
            return find(shard, attempts)
        except StorageError:
            raise
        except (FileNotFoundError, SizeError, ValueError):
            if not self._find_again(shard, find):
                raise
        return self._find_blocks[_folder(shard)](shard, attempts)

    def find_pass(self, split: str, seq_len: int, pass_index: int) -> bool:
        """Whether a pass is complete; from then on its shards are known here.

        Raises:
            ValueError: What is there is damaged or belongs to another build, or the build ended
                with fewer passes than planned.
        """
        with self._growing:
            if self.shards(split, seq_len, pass_index):
                return True
            if (found := self._look(split, seq_len, pass_index)) is None:
                return False
            shards, self._find_blocks[pass_folder(split, seq_len, pass_index)] = found
            self.all_shards = (*self.all_shards, *shards)
            return True

    def count_files(self) -> int:
        """Files of the dataset: grows while the build runs."""
        return len(self.folder.list())

    def _find_again(self, shard: Shard, tried: FindBlocks) -> bool:
        """Whether the blocks of a shard's pass may be found in another way than was tried."""
        is_held = self._looking.acquire(timeout=_LOOKING_SECONDS)
        try:
            if self._find_blocks[_folder(shard)] is not tried:
                return True  # another thread has looked
            place = shard.split, shard.seq_len, shard.pass_index
            if (found := self._look(*place)) is None:
                return False
            shards, find = found
            if pass_hash(shards) != pass_hash(self.shards(*place)):
                where = self.locate(_folder(shard))
                raise ValueError(
                    f"{where} was built again with other instances than it had; begin this run anew"
                )
            self._find_blocks[_folder(shard)] = find
            return True
        finally:
            if is_held:
                self._looking.release()

    def _look(
        self, split: str, seq_len: int, pass_index: int
    ) -> tuple[list[Shard], FindBlocks] | None:
        """The shards of a complete pass, and what finds their blocks; None where it is not complete."""
        self.folder.filesystem.invalidate_cache()  # a listing kept from before would hide it
        try:
            folder = pass_folder(split, seq_len, pass_index)
            return reread_damaged(lambda: self._look_published(folder), is_local=self.is_local)
        except FileNotFoundError:
            return self._look_finished(split, seq_len, pass_index)

    def _look_published(self, folder: str) -> tuple[list[Shard], FindBlocks]:
        """A pass published before the manifest; FileNotFoundError where it is not."""
        where, blocks_name = self.locate(f"{folder}/pass.json"), _blocks_name(folder)
        settings_hash, shards = parse_pass_json(
            self.read_file(f"{folder}/pass.json"), folder, where
        )
        num_bytes = self.folder.size(blocks_name)
        self._refuse_foreign(settings_hash, where)
        row = {shard.name: number for number, shard in enumerate(shards)}
        find = partial(self._published_blocks, _Published(blocks_name, num_bytes, shards, row))
        find(shards[0], ATTEMPTS)  # and with it the sizes of all
        return shards, find

    def _published_blocks(self, published: _Published, shard: Shard, attempts: int) -> BlockTable:
        tables, row = self._open_tables(published), published.row[shard.name]
        return self.folder.ask(lambda: tables.table(row), published.blocks_name, attempts)

    def _new_tables(self, published: _Published) -> BlockTables:
        name = published.blocks_name
        return BlockTables(
            lambda start, stop: self.read_bytes(name, start, stop),
            lambda: published.num_bytes,
            published.shards,
            self.locate(name),
        )

    def _look_finished(
        self, split: str, seq_len: int, pass_index: int
    ) -> tuple[list[Shard], FindBlocks] | None:
        """A pass that the finished dataset tells of; None where it does not, or there is none yet."""
        if not self.folder.exists(MANIFEST):
            return None
        finished = self._open_finished()
        self._refuse_foreign(finished.manifest.settings_hash, self.locate(MANIFEST))
        if shards := finished.shards(split, seq_len, pass_index):
            return shards, finished.blocks
        if self.folder.exists(PLAN):
            return None  # more passes are being added to it
        raise ValueError(
            f"{self.url}: the build ended without {pass_folder(split, seq_len, pass_index)}, of"
            f" {self.num_passes(split, seq_len)} passes planned when it was opened; open it again"
        )

    def _open_finished(self) -> Dataset:
        """The dataset as the build left it, opened anew where that is not what it was."""
        where = self.locate(MANIFEST)
        manifest = reread_damaged(
            lambda: parse_manifest(self.read_file(MANIFEST), where), is_local=self.is_local
        )
        if self._finished is None or self._finished.manifest != manifest:
            self._finished = open_dataset(self.url, self.folder.options)
        return self._finished

    def _refuse_foreign(self, settings_hash: str, where: str) -> None:
        if settings_hash != self.manifest.settings_hash:
            raise ValueError(
                f"{where} belongs to a build of other settings than the one that was followed"
            )


@dataclass(frozen=True)
class WaitPolicy:
    """How long to wait for a build.

    Attributes:
        limit_seconds: Without any new file of the dataset, until waiting ends with an error.
        say: Takes a line for people.
        stop: Ends the waiting early.
    """

    limit_seconds: float = 3600.0
    say: Callable[[str], object] = field(default=lambda _: None)
    stop: threading.Event = field(default_factory=threading.Event)

    def wait(
        self, look: Callable[[], Found | None], what: str, count_files: Callable[[], int]
    ) -> Found:
        """Looks until something is found, at growing intervals.

        Args:
            look: Returns it, or None as long as it is not there.
            what: Is waited for, for people.
            count_files: A number that changes while the build goes on.

        Raises:
            FileNotFoundError: Nothing moved for limit_seconds, or somebody stopped the waiting.
        """
        if (found := look()) is not None:
            return found
        self.say(f"waiting for {what}")
        began = moved = time.monotonic()
        num_files, pause = count_files(), FIRST_PAUSE_SECONDS
        while time.monotonic() - moved < self.limit_seconds:
            if self.stop.wait(min(pause, self.limit_seconds)):
                raise FileNotFoundError(f"stopped while waiting for {what}")
            if (found := look()) is not None:
                self.say(f"{what}: there after {time.monotonic() - began:.0f} s")
                return found
            if (now := count_files()) != num_files:
                num_files, moved = now, time.monotonic()
            pause = min(1.5 * pause, MAX_PAUSE_SECONDS)
        raise FileNotFoundError(
            f"waited {time.monotonic() - began:.0f} s for {what}, the last {self.limit_seconds:g} s without a new file:"
            " is the build still running? Run it again to continue it, and then this"
        )


def open_growing(
    url: str,
    storage_options: Mapping[str, Any] | None = None,
    wait_policy: WaitPolicy | None = None,
) -> Dataset:
    """Opens a dataset that is finished or being built; waits until the build's shards are planned.

    Raises:
        FileNotFoundError: Nothing new came for as long as the policy says.
    """
    folder = Folder(url, storage_options)

    def read_plan() -> Manifest:
        return parse_manifest(folder.read(PLAN), f"{url}/{PLAN}")

    def look() -> Dataset | None:
        folder.filesystem.invalidate_cache()
        if folder.exists(PLAN):
            try:
                plan = reread_damaged(read_plan, is_local=folder.is_local)
            except FileNotFoundError:
                return None  # the build ended this moment
            return GrowingDataset(folder, plan)
        return open_dataset(url, storage_options) if folder.exists(MANIFEST) else None

    what = f"the build of {url} to come to its shards"
    return (wait_policy or WaitPolicy()).wait(look, what, lambda: len(folder.list()))


def wait_for_pass(
    dataset: Dataset, split: str, seq_len: int, pass_index: int, wait_policy: WaitPolicy
) -> None:
    """Waits until a pass is complete.

    Raises:
        FileNotFoundError: Nothing new came for as long as the policy says.
    """
    if not isinstance(dataset, GrowingDataset):
        return
    what = f"{dataset.locate(pass_folder(split, seq_len, pass_index))} to be built"
    wait_policy.wait(
        lambda: dataset.find_pass(split, seq_len, pass_index) or None, what, dataset.count_files
    )


def _folder(shard: Shard) -> str:
    return pass_folder(shard.split, shard.seq_len, shard.pass_index)


def _blocks_name(folder: str) -> str:
    return f"{RECORDS}/{folder}/{BLOCKS_TABLE}"
