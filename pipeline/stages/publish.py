"""Making shards readable: each pass as it is complete, and in the end the whole dataset.

The rows of all shards are held in memory. Where their blocks lie is read again from the records
when it is written: 76 million blocks of 80,000 shards would take 3 GB.
"""

import dataclasses
import hashlib
import re
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pipeline.jobs.exchange import ShardTask
from pipeline.jobs.shard_records import (
    ShardRecord,
    accept_record,
    format_record,
    read_record,
    record_name,
)
from pipeline.shards.block_tables import write_blocks
from pipeline.shards.growing import PLAN, RECORDS, publish_pass, withdraw_passes
from pipeline.shards.manifest import (
    BLOCKS_TABLE,
    MANIFEST,
    SHARDS_TABLE,
    by_pass,
    pass_folder,
    pass_json,
    shards_table,
)
from pipeline.shards.records import BlockTable, Group, Manifest, Shard, json_bytes
from pipeline.shards.table_checks import SPLITS
from pipeline.storage.ahead import map_ahead
from pipeline.storage.folder import Folder
from pipeline.storage.local import find_temporaries
from pipeline.storage.terminal import say

SETTINGS = f"{RECORDS}/settings.json"
_SPLIT = f"(?:{'|'.join(SPLITS)})"
_OF_A_BUILD = re.compile(rf"{_SPLIT}/L\d+/pass-\d+/(?:shard-\d+\.tar|pass\.json)|{RECORDS}/.*")
Built = dict[str, tuple[Shard, Callable[[], BlockTable]]]
"""The rows of shards that are there, by their names, and what reads where their blocks lie."""


class PassPublisher:
    """Publishes the passes of a running job as their shards are finished, from one thread."""

    def __init__(
        self, folder: Folder, tasks: Sequence[ShardTask], built: Built, settings_hash: str
    ) -> None:
        """Takes back what an earlier job published of passes that are not complete now.

        `tasks` are all of the dataset, `built` the shards that are there.
        """
        self.built = dict(built)
        self._folder, self._settings_hash = folder, settings_hash
        self._unfinished = {task.name for task in tasks if task.name not in built}
        self._num_missing = len(self._unfinished)
        self._tasks = {task.name: task for task in tasks}
        self._waiting: dict[str, set[str]] = {}
        for task in tasks:
            place = pass_folder(task.bucket.split, task.seq_len, task.pass_index)
            self._waiting.setdefault(place, set()).add(task.name)
        incomplete = [place for place, names in self._waiting.items() if names & self._unfinished]
        withdraw_passes(folder, incomplete)

    def look(self) -> int:
        """Publishes what became complete; how many of the job's shards are finished."""
        files = (self._folder / RECORDS).list()
        self._unfinished = {
            name
            for name in self._unfinished
            if record_name(name).removeprefix(f"{RECORDS}/") not in files
        }
        for place, waiting in list(self._waiting.items()):
            if waiting & self._unfinished:
                continue
            tasks = [self._tasks[name] for name in sorted(waiting - self.built.keys())]
            self.built |= read_records(self._folder, tasks, self._settings_hash, place)
            if self.built.keys() >= waiting:
                shards, readers = zip(*(self.built[name] for name in sorted(waiting)), strict=True)
                tables = map_ahead(lambda read: read(), readers)
                rows = list(zip(shards, tables, strict=True))
                publish_pass(self._folder, rows, self._settings_hash)
                del self._waiting[place]
        return self._num_missing - len(self._unfinished)


def read_records(
    folder: Folder, tasks: Sequence[ShardTask], settings_hash: str, place: str = ""
) -> Built:
    """The finished ones among the tasks: those with a record that counts, and a shard of its size.

    All tasks have their shards in `place`, a folder of the dataset; by default the dataset itself.
    """
    inside = f"{place}/" if place else ""
    shards, records = (each / place if place else each for each in (folder, folder / RECORDS))
    shard_sizes, record_sizes = shards.list(), records.list()
    own = {task.name.removeprefix(inside): task for task in tasks}
    names = [name for name in own if name in shard_sizes and f"{name}.json" in record_sizes]
    read = records.read_each([f"{name}.json" for name in names], record_sizes)
    built: Built = {}
    for name, data in zip(names, read, strict=True):
        record = accept_record(data, own[name], settings_hash)
        if record is not None and record.shard.num_bytes == shard_sizes[name]:
            read_again = partial(_read_blocks, folder, own[name], settings_hash)
            built[record.shard.name] = record.shard, read_again
    return built


def _read_blocks(folder: Folder, task: ShardTask, settings_hash: str) -> BlockTable:
    record = read_record(folder, task, settings_hash)
    if record is None:
        raise ValueError(
            f"{folder.locate(record_name(task.name))} is gone or damaged since it was read;"
            " run the same command again"
        )
    return record.blocks


def planned_groups(tasks: Sequence[ShardTask], built: Built) -> tuple[Group, ...]:
    """The groups there will be, with their passes and shards; all totals are 0."""
    shards = {(task.bucket.split, task.seq_len, task.pass_index, task.name) for task in tasks}
    there = (shard for shard, _ in built.values())
    shards |= {(each.split, each.seq_len, each.pass_index, each.name) for each in there}
    members: dict[tuple[str, int], list[int]] = {}
    for split, seq_len, pass_index, _ in shards:
        members.setdefault((split, seq_len), []).append(pass_index)
    return tuple(
        Group(*key, len(set(passes)), len(passes), *[0] * 6)
        for key, passes in sorted(members.items())
    )


def publish_dataset(folder: Folder, built: Built, manifest: Manifest) -> None:
    """Writes pass.json of every pass, the tables, then the manifest.

    Records of every shard stay until the manifest is there, so that a kill loses nothing.
    """
    ordered = [built[name] for name in sorted(built)]
    shards = [shard for shard, _ in ordered]
    if folder.exists(MANIFEST):
        folder.write(SETTINGS, json_bytes(manifest.settings))

        def write_record(row: tuple[Shard, Callable[[], BlockTable]]) -> None:
            record = ShardRecord(manifest.settings_hash, row[0], row[1]())
            folder.write(record_name(record.shard.name), format_record(record))

        deque(map_ahead(write_record, ordered), maxlen=0)
        folder.remove([MANIFEST])
    for place, members in by_pass(shards).items():
        folder.write(f"{place}/pass.json", pass_json(members, manifest.settings_hash))
    rows = shards_table(shards)
    tables_sha256 = {SHARDS_TABLE: hashlib.sha256(rows).hexdigest()}
    with tempfile.NamedTemporaryFile(prefix="beambert-blocks-") as file:
        write_blocks(file, map_ahead(lambda row: row[1](), ordered))
        file.flush()
        with Path(file.name).open("rb") as written:
            tables_sha256[BLOCKS_TABLE] = hashlib.file_digest(written, "sha256").hexdigest()
        folder.write(BLOCKS_TABLE, Path(file.name))
    folder.write(SHARDS_TABLE, rows)
    folder.write(MANIFEST, dataclasses.replace(manifest, tables_sha256=tables_sha256).to_json())
    remove_leftovers(folder)


def remove_leftovers(folder: Folder) -> None:
    """Removes the records of a published dataset, and temporary files that killed writers left.

    The plan is removed even if the store does not list it, because readers take it as a sign that
    the build is still at work.
    """
    files = folder.list()
    records = [name for name in files if name.startswith(f"{RECORDS}/")]
    folder.remove(sorted({*records, *find_temporaries(files), PLAN, SETTINGS}))


def remove_unfinished(folder: Folder) -> None:
    """Removes the shards and records of a build that is not finished, if there is one.

    A finished dataset has no records, so nothing of it is removed.
    """
    files = folder.list()
    is_at_work = any(name.startswith(f"{RECORDS}/") for name in files)
    if is_at_work and MANIFEST not in files:
        names = [name for name in files if _OF_A_BUILD.fullmatch(name)]
        say(f"{folder.url}: the unfinished build there, {len(names):,} files, begins again")
        folder.remove(names)
