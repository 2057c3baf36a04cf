"""A dataset whose build is still running: what is published before the manifest, and who follows.

    _tasks/plan.json                           the manifest as known at the start; totals are 0
    _tasks/train/L128/pass-00/blocks.parquet   where the blocks of a complete pass lie
    train/L128/pass-00/pass.json               its shards; written after its blocks.parquet

When manifest.json is there, _tasks/ goes.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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

FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 30.0

Found = TypeVar("Found")
ShardBlocks = tuple[Shard, BlockTable]
FindBlocks = Callable[[Shard, int], BlockTable]
"""`Dataset.blocks` for the shards of a pass."""


def publish_pass(folder: Folder, rows: Sequence[ShardBlocks], settings_hash: str) -> None:
    """Makes a complete pass readable before the manifest is there; pass.json comes last."""
    ordered = sorted(rows, key=lambda row: row[0].name)
    place = ordered[0][0].folder
    folder.write(_blocks_name(place), blocks_table([table for _, table in ordered]))
    folder.write(f"{place}/pass.json", pass_json([shard for shard, _ in ordered], settings_hash))


def withdraw_passes(folder: Folder, passes: Sequence[str]) -> None:
    """Removes the files that `publish_pass` wrote, because a shard was lost and is built again.

    Each is asked for by its name: one that a listing leaves out may be seen by a reader. What is
    not there is not removed, as on the Hugging Face Hub every removal is a commit.
    """
    for names in [f"{each}/pass.json" for each in passes], [_blocks_name(each) for each in passes]:
        folder.remove([name for name in names if folder.exists(name)])


class GrowingDataset(Dataset):
    """A dataset whose passes appear one after another; its manifest is the plan of the build."""

    def __init__(self, folder: Folder, plan: Manifest) -> None:
        super().__init__(folder, plan, [])
        self._find_blocks: dict[str, FindBlocks] = {}  # by pass folder
        self._finished: Dataset | None = None
        self._growing = threading.Lock()

    def blocks(
        self,
        shard: Shard,
        attempts: int = ATTEMPTS,
        keep: Keep | None = None,  # noqa: ARG002
    ) -> BlockTable:
        """Where the blocks of a shard of a pass found lie, as `Dataset.blocks`; nothing is kept.

        The build takes away what it published of a pass when it ends, and writes blocks.parquet
        anew when more passes are added, so what is not there or does not fit is looked for once
        more.
        """
        find = self._find_blocks[shard.folder]
        try:
            return find(shard, attempts)
        except StorageError:
            raise
        except (FileNotFoundError, SizeError, ValueError):
            is_tried = self._find_blocks[shard.folder] is find  # or another thread has looked
            if is_tried and not self._find_again(shard):
                raise
        return self._find_blocks[shard.folder](shard, attempts)

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

    def _find_again(self, shard: Shard) -> bool:
        """Whether the blocks of a shard's pass may be found in another way than before."""
        place = shard.split, shard.seq_len, shard.pass_index
        if (found := self._look(*place)) is None:
            return False
        shards, find = found
        if pass_hash(shards) != pass_hash(self.shards(*place)):
            said = "was built again with other instances than it had; begin this run anew"
            raise ValueError(f"{self.locate(shard.folder)} {said}")
        self._find_blocks[shard.folder] = find
        return True

    def _look(
        self, split: str, seq_len: int, pass_index: int
    ) -> tuple[list[Shard], FindBlocks] | None:
        """The shards of a complete pass, and what finds their blocks; None where it is not."""
        self.folder.filesystem.invalidate_cache()  # a listing kept from before would hide it
        try:
            folder = pass_folder(split, seq_len, pass_index)
            return reread_damaged(lambda: self._look_published(folder), is_local=self.is_local)
        except FileNotFoundError:
            return self._look_finished(split, seq_len, pass_index)

    def _look_published(self, folder: str) -> tuple[list[Shard], FindBlocks]:
        """A pass published before the manifest; FileNotFoundError where it is not."""
        name, blocks_name = f"{folder}/pass.json", _blocks_name(folder)
        settings_hash, shards = parse_pass_json(self.read_file(name), folder, self.locate(name))
        num_bytes = self.folder.size(blocks_name)
        self._refuse_foreign(settings_hash, self.locate(name))
        tables = BlockTables(
            lambda start, stop: self.read_bytes(blocks_name, start, stop),
            lambda: num_bytes,
            shards,
            self.locate(blocks_name),
        )
        row = {shard.name: number for number, shard in enumerate(shards)}

        def find(shard: Shard, attempts: int) -> BlockTable:
            return self.folder.ask(lambda: tables.table(row[shard.name]), blocks_name, attempts)

        find(shards[0], ATTEMPTS)  # and with it the sizes of all
        return shards, find

    def _look_finished(
        self, split: str, seq_len: int, pass_index: int
    ) -> tuple[list[Shard], FindBlocks] | None:
        """A pass that the finished dataset tells of; None where it does not, or is not there."""
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
        read = partial(self.read_file, MANIFEST)
        manifest = reread_damaged(lambda: parse_manifest(read(), where), is_local=self.is_local)
        if self._finished is None or self._finished.manifest != manifest:
            self._finished = open_dataset(self.url, self.folder.options)
        return self._finished

    def _refuse_foreign(self, settings_hash: str, where: str) -> None:
        if settings_hash != self.manifest.settings_hash:
            said = "belongs to a build of other settings than the one that was followed"
            raise ValueError(f"{where} {said}")


@dataclass(frozen=True)
class WaitPolicy:
    """How long to wait for a build."""

    limit_seconds: float = 3600.0
    """Without any new file of the dataset, until waiting ends with an error."""
    say: Callable[[str], object] = field(default=lambda _: None)
    """Takes a line for people."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends the waiting early."""

    def wait(
        self, look: Callable[[], Found | None], what: str, count_files: Callable[[], int]
    ) -> Found:
        """Looks at growing intervals until `what` is there, while the number of files grows.

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
            f"waited {time.monotonic() - began:.0f} s for {what}, the last {self.limit_seconds:g} s"
            " without a new file: is the build still running? Run it again to continue it, and then"
            " this"
        )


def open_growing(
    url: str,
    storage_options: Mapping[str, Any] | None = None,
    wait_policy: WaitPolicy | None = None,
) -> Dataset:
    """Opens a dataset that is finished or being built; waits, as `WaitPolicy`, for its plan."""
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
    """Waits, as `WaitPolicy`, until a pass is complete."""
    if isinstance(dataset, GrowingDataset):
        place = split, seq_len, pass_index
        what = f"{dataset.locate(pass_folder(*place))} to be built"
        wait_policy.wait(lambda: dataset.find_pass(*place) or None, what, dataset.count_files)


def _blocks_name(folder: str) -> str:
    return f"{RECORDS}/{folder}/{BLOCKS_TABLE}"
