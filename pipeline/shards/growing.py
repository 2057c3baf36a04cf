"""Publishes the passes of a build that is still running, and opens them for training.

Before the manifest is there, a dataset has these files:

    _tasks/plan.json                           the manifest as known at the start; totals are 0
    _tasks/train/L128/pass-00/blocks.parquet   block tables of a complete pass
    train/L128/pass-00/pass.json               its shards; written after its blocks.parquet

The build removes _tasks/ when it has written manifest.json (docs/format.md, section 3).
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
"""The folder of a dataset that is there only while its build runs."""

PLAN = f"{RECORDS}/plan.json"
UNKNOWN_HASH = "0" * 64
"""The root hash that a plan has, as the shards are not there yet."""

FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 30.0

Found = TypeVar("Found")
ShardBlocks = tuple[Shard, BlockTable]
FindBlocks = Callable[[Shard, int], BlockTable]
"""`find(shard, attempts)` returns the block table of a shard of one pass, as `Dataset.blocks`."""


def publish_pass(folder: Folder, rows: Sequence[ShardBlocks], settings_hash: str) -> None:
    """Writes the tables of a complete pass, so that it can be read before the manifest is there.

    pass.json is written last, so its presence tells readers that the pass is complete.

    Args:
        folder: The folder of the dataset.
        rows: All shards of the pass, each with its block table, in any order.
        settings_hash: The hash of the build's settings.
    """
    ordered = sorted(rows, key=lambda row: row[0].name)
    shards = [shard for shard, _ in ordered]
    tables = [table for _, table in ordered]
    pass_name = shards[0].folder
    folder.write(_blocks_name(pass_name), blocks_table(tables))
    folder.write(f"{pass_name}/pass.json", pass_json(shards, settings_hash))


def withdraw_passes(folder: Folder, passes: Sequence[str]) -> None:
    """Removes the files that `publish_pass` wrote, because a shard was lost and is built again.

    The folder is not listed, because a listing may leave out a file that readers see. Instead each
    file is looked for by its name. Only files that exist are removed, because on the Hugging Face
    Hub every removal is a commit.

    Args:
        folder: The folder of the dataset.
        passes: Folders of the passes, such as "train/L128/pass-00".
    """
    pass_files = [f"{name}/pass.json" for name in passes]
    blocks_files = [_blocks_name(name) for name in passes]
    for names in (pass_files, blocks_files):
        folder.remove([name for name in names if folder.exists(name)])


class GrowingDataset(Dataset):
    """A dataset that is being built. Its passes become readable one after another.

    `manifest` is the plan of the build: totals are 0, and the root hash is UNKNOWN_HASH.
    `all_shards` has the shards of the passes that `find_pass` has seen to be complete.
    """

    def __init__(self, folder: Folder, plan: Manifest) -> None:
        """Opens a dataset that is still being built. `find_pass` looks for its finished passes.

        Args:
            folder: The folder of the dataset.
            plan: The content of plan.json.
        """
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
        """Returns a shard's block table, like `Dataset.blocks`, but without a cache.

        When the build ends, it removes the tables that it had published pass by pass, and it writes
        blocks.parquet anew when passes are added. So a table that is missing or does not fit is
        looked for once more, in the finished dataset too.

        Args:
            shard: A shard of a pass that `find_pass` has found.
            attempts: As for `Dataset.blocks`.
            keep: Not used.

        Raises:
            FileNotFoundError: The table is missing.
            StorageError: The store failed in every attempt.
            ValueError: The table is damaged or does not describe the shard, or the pass was built
                again with other instances.
        """
        find = self._find_blocks[shard.folder]
        try:
            return find(shard, attempts)
        except StorageError:
            raise
        except (FileNotFoundError, SizeError, ValueError):
            # Another thread may have looked for the pass meanwhile, and found a new table.
            is_unchanged = self._find_blocks[shard.folder] is find
            if is_unchanged and not self._find_again(shard):
                raise
        return self._find_blocks[shard.folder](shard, attempts)

    def find_pass(self, split: str, seq_len: int, pass_index: int) -> bool:
        """Returns whether a pass is complete. If it is, its shards are added to `all_shards`.

        Raises:
            ValueError: The pass's files are damaged or belong to another build, or the build ended
                with fewer passes than planned.
        """
        with self._growing:
            if self.shards(split, seq_len, pass_index):
                return True
            complete = self._look(split, seq_len, pass_index)
            if complete is None:
                return False
            shards, find = complete
            self._find_blocks[pass_folder(split, seq_len, pass_index)] = find
            self.all_shards = (*self.all_shards, *shards)
            return True

    def count_files(self) -> int:
        """Returns the number of files in the dataset's folder; it grows while the build runs."""
        return len(self.folder.list())

    def _find_again(self, shard: Shard) -> bool:
        """Looks again for the block tables of a shard's pass, in case they were moved or rewritten.

        Returns:
            Whether the pass is there. If so, its new block tables are used from now on.

        Raises:
            ValueError: The pass has other instances than before.
        """
        place = shard.split, shard.seq_len, shard.pass_index
        complete = self._look(*place)
        if complete is None:
            return False
        shards, find = complete
        if pass_hash(shards) != pass_hash(self.shards(*place)):
            raise ValueError(
                f"{self.locate(shard.folder)} was built again with other instances than it had;"
                " begin this run anew"
            )
        self._find_blocks[shard.folder] = find
        return True

    def _look(
        self, split: str, seq_len: int, pass_index: int
    ) -> tuple[list[Shard], FindBlocks] | None:
        """Looks for a pass, first as a running build publishes it, then in the finished dataset.

        Returns:
            shards: The shards of the pass.
            find: The function that returns the block table of one of them.

            None if the pass is not complete.
        """
        self.folder.filesystem.invalidate_cache()  # an old listing would hide new files
        try:
            folder = pass_folder(split, seq_len, pass_index)
            return reread_damaged(lambda: self._look_published(folder), is_local=self.is_local)
        except FileNotFoundError:
            return self._look_finished(split, seq_len, pass_index)

    def _look_published(self, folder: str) -> tuple[list[Shard], FindBlocks]:
        """Reads the tables of a pass that the running build has published.

        Args:
            folder: The folder of the pass, such as "train/L128/pass-00".

        Raises:
            FileNotFoundError: The pass is not published, or no longer.
            ValueError: Its files are damaged, or belong to another build.
        """
        name = f"{folder}/pass.json"
        blocks_name = _blocks_name(folder)
        settings_hash, shards = parse_pass_json(self.read_file(name), folder, self.locate(name))
        num_bytes = self.folder.size(blocks_name)
        self._refuse_foreign(settings_hash, self.locate(name))
        tables = BlockTables(
            lambda start, stop: self.read_bytes(blocks_name, start, stop),
            lambda: num_bytes,
            shards,
            self.locate(blocks_name),
        )
        rows = {shard.name: row for row, shard in enumerate(shards)}

        def find(shard: Shard, attempts: int) -> BlockTable:
            return self.folder.ask(lambda: tables.table(rows[shard.name]), blocks_name, attempts)

        find(shards[0], ATTEMPTS)  # opens the table, and so checks its size and its rows
        return shards, find

    def _look_finished(
        self, split: str, seq_len: int, pass_index: int
    ) -> tuple[list[Shard], FindBlocks] | None:
        """Looks for a pass in the finished dataset.

        Returns:
            The pass's shards and the function that finds their blocks; None if the dataset is not
                finished, or a build is adding passes to it.

        Raises:
            ValueError: The build ended without this pass, or another build wrote the dataset.
        """
        if not self.folder.exists(MANIFEST):
            return None
        finished = self._open_finished()
        self._refuse_foreign(finished.manifest.settings_hash, self.locate(MANIFEST))
        shards = finished.shards(split, seq_len, pass_index)
        if shards:
            return shards, finished.blocks
        if self.folder.exists(PLAN):  # a build is adding passes
            return None
        raise ValueError(
            f"{self.url}: the build ended without {pass_folder(split, seq_len, pass_index)}, of"
            f" {self.num_passes(split, seq_len)} passes planned when it was opened; open it again"
        )

    def _open_finished(self) -> Dataset:
        """Returns the finished dataset, opened anew if its manifest has changed."""
        where = self.locate(MANIFEST)
        read = partial(self.read_file, MANIFEST)
        manifest = reread_damaged(lambda: parse_manifest(read(), where), is_local=self.is_local)
        if self._finished is None or self._finished.manifest != manifest:
            self._finished = open_dataset(self.url, self.folder.options)
        return self._finished

    def _refuse_foreign(self, settings_hash: str, where: str) -> None:
        """Raises ValueError if a file has another settings hash than the plan."""
        if settings_hash != self.manifest.settings_hash:
            raise ValueError(
                f"{where} belongs to a build of other settings than the one that was followed"
            )


@dataclass(frozen=True)
class WaitPolicy:
    """Rules for waiting for a build: when to give up, and how to report and stop the waiting.

    Attributes:
        limit_seconds: Waiting ends with an error if the number of the dataset's files has not
            changed for this many seconds.
        say: Called with a message for the user when the waiting begins, and with another one when
            the build has made what was waited for.
        stop: An event. If it is set, the waiting ends with an error.
    """

    limit_seconds: float = 3600.0
    say: Callable[[str], object] = field(default=lambda _: None)
    stop: threading.Event = field(default_factory=threading.Event)

    def wait(
        self, look: Callable[[], Found | None], what: str, count_files: Callable[[], int]
    ) -> Found:
        """Calls `look` at growing intervals until it returns something, and returns that.

        Args:
            look: Returns what is waited for, or None if it is not there yet.
            what: Names what is waited for, in messages.
            count_files: Returns the number of the dataset's files. While it changes, the build is
                alive, and waiting goes on.

        Raises:
            FileNotFoundError: The number of files has not changed for limit_seconds, or `stop` was
                set.
        """
        found = look()
        if found is not None:
            return found

        self.say(f"waiting for {what}")
        began = time.monotonic()
        changed = began
        num_files = count_files()
        pause = FIRST_PAUSE_SECONDS
        while time.monotonic() - changed < self.limit_seconds:
            if self.stop.wait(min(pause, self.limit_seconds)):
                raise FileNotFoundError(f"stopped while waiting for {what}")
            found = look()
            if found is not None:
                self.say(f"{what}: there after {time.monotonic() - began:.0f} s")
                return found
            num_files_now = count_files()
            if num_files_now != num_files:
                num_files = num_files_now
                changed = time.monotonic()
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
    """Opens a dataset that is finished or being built; waits if its build has not begun.

    Args:
        url: The folder of the dataset, on a local disk or at any URL that fsspec knows.
        storage_options: Options of the URL's filesystem.
        wait_policy: How long to wait; None waits by the defaults of `WaitPolicy`.

    Returns:
        A `GrowingDataset` if the build is running, otherwise the finished dataset.

    Raises:
        FileNotFoundError: Neither a plan nor a manifest appeared in time.
        ValueError: The plan or the manifest is damaged.
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
                return None  # the build ended in this moment
            return GrowingDataset(folder, plan)
        if folder.exists(MANIFEST):
            return open_dataset(url, storage_options)
        return None

    what = f"the build of {url} to come to its shards"
    return (wait_policy or WaitPolicy()).wait(look, what, lambda: len(folder.list()))


def wait_for_pass(
    dataset: Dataset, split: str, seq_len: int, pass_index: int, wait_policy: WaitPolicy
) -> None:
    """Waits until a pass is complete; returns at once for a finished dataset.

    Args:
        dataset: An open dataset.
        split: "train" or "validation".
        seq_len: The most tokens of an instance.
        pass_index: The number of the pass, from 0.
        wait_policy: How long to wait.

    Raises:
        FileNotFoundError: The pass was not complete in time.
        ValueError: The pass's files are damaged or belong to another build, or the build ended
            without the pass.
    """
    if isinstance(dataset, GrowingDataset):
        place = split, seq_len, pass_index
        what = f"{dataset.locate(pass_folder(*place))} to be built"
        wait_policy.wait(lambda: dataset.find_pass(*place) or None, what, dataset.count_files)


def _blocks_name(folder: str) -> str:
    """Returns the name of the file with the block tables of a pass, while the build runs."""
    return f"{RECORDS}/{folder}/{BLOCKS_TABLE}"
