"""Making shards readable: each pass as it is complete, while the job runs, and in the end the whole dataset.

A record counts only for its own task, and only while its shard has its size.
"""

import dataclasses
import hashlib
from collections.abc import Sequence

from pipeline.jobs.exchange import ShardTask
from pipeline.jobs.shard_records import ShardRecord, format_record, read_record, record_name
from pipeline.shards.block_tables import blocks_table
from pipeline.shards.growing import PLAN, RECORDS, publish_pass, withdraw_passes
from pipeline.shards.manifest import (
    BLOCKS_TABLE,
    MANIFEST,
    SHARDS_TABLE,
    pass_folder,
    pass_json,
    shards_table,
)
from pipeline.shards.records import BlockTable, Group, Manifest, Shard, json_bytes
from pipeline.storage.folder import Folder
from pipeline.storage.local import find_temporaries

SETTINGS = f"{RECORDS}/settings.json"
Built = dict[str, tuple[Shard, BlockTable]]


class PassPublisher:
    """Publishes the passes of a running job as their shards are finished; called from one thread at a time."""

    def __init__(self, folder: Folder, tasks: Sequence[ShardTask], built: Built, settings_hash: str) -> None:
        """Takes back what an earlier job published of passes that are not complete now.

        Args:
            folder: Of the dataset.
            tasks: All of the dataset.
            built: Shards that are there.
            settings_hash: Of the dataset.
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
        self._unfinished -= {
            name for name in self._unfinished if record_name(name).removeprefix(f"{RECORDS}/") in files
        }
        for place in [place for place, names in self._waiting.items() if not names & self._unfinished]:
            names = sorted(self._waiting[place])
            tasks = [self._tasks[name] for name in names if name not in self.built]
            self.built |= read_records(self._folder, tasks, self._settings_hash, place)
            if self.built.keys() >= set(names):
                rows = [self.built[name] for name in names]
                publish_pass(self._folder, rows, self._settings_hash)
                del self._waiting[place]
        return self._num_missing - len(self._unfinished)


def read_records(folder: Folder, tasks: Sequence[ShardTask], settings_hash: str, place: str = "") -> Built:
    """The finished ones among the tasks: those with a record that counts, and a shard of its size.

    Args:
        folder: Of the dataset.
        tasks: All of them have their shards in the place.
        settings_hash: Of the dataset.
        place: A folder of the dataset; by default the dataset itself.
    """
    inside = f"{place}/" if place else ""
    files = (folder / place if place else folder).list()
    sizes = {f"{inside}{name}": size for name, size in files.items()}
    records = (read_record(folder, task, settings_hash) for task in tasks if task.name in sizes)
    found = [record for record in records if record is not None]
    return {
        each.shard.name: (each.shard, each.blocks) for each in found if sizes[each.shard.name] == each.shard.num_bytes
    }


def publish_plan(folder: Folder, manifest: Manifest) -> None:
    """Says, before the shards are built, what there will be."""
    folder.write(PLAN, manifest.to_json())


def planned_groups(tasks: Sequence[ShardTask], built: Built) -> tuple[Group, ...]:
    """The groups there will be, with their passes and shards; all totals are 0."""
    shards = {(task.bucket.split, task.seq_len, task.pass_index, task.name) for task in tasks}
    shards |= {(shard.split, shard.seq_len, shard.pass_index, shard.name) for shard, _ in built.values()}
    members: dict[tuple[str, int], list[int]] = {}
    for split, seq_len, pass_index, _ in shards:
        members.setdefault((split, seq_len), []).append(pass_index)
    return tuple(Group(*key, len(set(passes)), len(passes), *[0] * 6) for key, passes in sorted(members.items()))


def publish_dataset(folder: Folder, built: Built, manifest: Manifest) -> None:
    """Writes pass.json of every pass, the tables, then the manifest; a kill in between loses nothing.

    Records of every shard stay until the manifest is there, also of those that an earlier manifest spoke of.
    """
    ordered = [built[name] for name in sorted(built)]
    if folder.exists(MANIFEST):
        folder.write(SETTINGS, json_bytes(manifest.settings))
        for shard, table in ordered:
            record = format_record(ShardRecord(manifest.settings_hash, shard, table))
            folder.write(record_name(shard.name), record)
        folder.remove([MANIFEST])
    passes: dict[str, list[Shard]] = {}
    for shard, _ in ordered:
        passes.setdefault(pass_folder(shard.split, shard.seq_len, shard.pass_index), []).append(shard)
    for place, shards in passes.items():
        folder.write(f"{place}/pass.json", pass_json(shards, manifest.settings_hash))
    tables = {
        BLOCKS_TABLE: blocks_table([table for _, table in ordered]),
        SHARDS_TABLE: shards_table([shard for shard, _ in ordered]),
    }
    for name, data in tables.items():
        folder.write(name, data)
    sha256 = {name: hashlib.sha256(data).hexdigest() for name, data in tables.items()}
    folder.write(MANIFEST, dataclasses.replace(manifest, tables_sha256=sha256).to_json())
    remove_leftovers(folder)


def remove_leftovers(folder: Folder) -> None:
    """Removes the records of a published dataset and what killed writers left beside its files."""
    files = folder.list()
    records = [name for name in files if name.startswith(f"{RECORDS}/")]
    folder.remove(sorted({*records, *find_temporaries(files)}))
