"""Makes shards readable: each pass when it is complete, and in the end the whole dataset.

To publish a pass or a dataset is to write its tables, without which its shards cannot be found.
Each shard's record is read once. Memory holds the rows of all shards. Their block tables wait on
this machine's disk (pipeline.stages.block_spool) until they are published.
"""

import dataclasses
import hashlib
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.jobs.exchange import ShardTask
from pipeline.jobs.shard_records import (
    ShardRecord,
    accept_record,
    format_record,
    record_name,
)
from pipeline.shards.block_tables import write_blocks
from pipeline.shards.growing import PLAN, RECORDS, publish_pass, withdraw_passes
from pipeline.shards.manifest import (
    BLOCKS_TABLE,
    MANIFEST,
    SHARDS_TABLE,
    by_pass,
    parse_manifest,
    pass_folder,
    pass_json,
    shards_table,
)
from pipeline.shards.records import BlockTable, Group, Manifest, Shard, json_bytes
from pipeline.shards.redactions import is_redacted
from pipeline.shards.seal import Seal
from pipeline.shards.table_checks import SPLITS
from pipeline.stages.block_spool import BlockSpool
from pipeline.storage.ahead import map_ahead
from pipeline.storage.folder import Folder
from pipeline.storage.json_files import read_object
from pipeline.storage.local import find_temporaries
from pipeline.storage.terminal import say

SETTINGS = f"{RECORDS}/settings.json"
_SPLIT = f"(?:{'|'.join(SPLITS)})"
_OF_A_BUILD = re.compile(rf"{_SPLIT}/L\d+/pass-\d+/(?:shard-\d+\.tar|pass\.json)|{RECORDS}/.*")
_LISTED_AT_ONCE = 8
"""Folders of passes that are listed at the same time; each may have 65,536 files."""
Built = dict[str, tuple[Shard, Callable[[], BlockTable]]]
"""Shards that are there, by their names: the row of each, and a function that reads its blocks."""


class PassPublisher:
    """Publishes each pass as soon as all its shards are finished, while the job goes on.

    Only one thread at a time may use it.

    Attributes:
        built: The shards that are known to be finished.
    """

    def __init__(
        self,
        folder: Folder,
        tasks: Sequence[ShardTask],
        built: Built,
        settings_hash: str,
        spool: BlockSpool,
    ) -> None:
        """Withdraws the passes that an earlier job published and that now lack shards.

        Args:
            folder: The folder of the dataset.
            tasks: All shards of the dataset.
            built: The shards that are finished.
            settings_hash: Hash of the dataset's settings.
            spool: Receives the block tables of shards that the job finishes.
        """
        self.built = dict(built)
        self._folder = folder
        self._settings_hash = settings_hash
        self._spool = spool
        self._unfinished = {task.name for task in tasks if task.name not in built}
        self._num_missing = len(self._unfinished)
        self._seals = seals_of(tasks)
        self._waiting: dict[str, set[str]] = {}  # shards of each pass not published, by its folder
        for task in tasks:
            place = pass_folder(task.bucket.split, task.seq_len, task.pass_index)
            self._waiting.setdefault(place, set()).add(task.name)
        incomplete = [place for place, names in self._waiting.items() if names & self._unfinished]
        withdraw_passes(folder, incomplete)

    def look(self) -> int:
        """Publishes the passes that have become complete since the last call.

        Returns:
            How many of the shards that were missing at the start are finished.
        """
        places = [f"{RECORDS}/{place}" for place in places_of(self._unfinished)]
        files = list_places(self._folder, places)
        self._unfinished = {name for name in self._unfinished if record_name(name) not in files}
        for place, names in list(self._waiting.items()):
            if names & self._unfinished:
                continue
            seals = {name: self._seals[name] for name in sorted(names - self.built.keys())}
            self.built |= read_records(self._folder, seals, self._settings_hash, self._spool)
            if self.built.keys() >= names:
                self._publish(sorted(names))
                del self._waiting[place]
        return self._num_missing - len(self._unfinished)

    def _publish(self, names: Sequence[str]) -> None:
        """Publishes a pass, given the names of all its shards."""
        shards = [self.built[name][0] for name in names]
        readers = [self.built[name][1] for name in names]
        tables = map_ahead(lambda read: read(), readers)
        publish_pass(self._folder, list(zip(shards, tables, strict=True)), self._settings_hash)


def list_places(folder: Folder, places: Iterable[str]) -> dict[str, int]:
    """Returns the size in bytes of every file in some folders of a dataset, by its name.

    Several folders are listed at the same time. A store answers with 1,000 names per request, so a
    dataset of 655,360 shards has 656 requests, one after another if it is listed as a whole.

    Args:
        folder: The folder of the dataset, to which the names are relative.
        places: The folders, such as "train/L128/pass-00". One that does not exist has no files.
    """
    places = list(places)
    listings = map_ahead(lambda place: (folder / place).list(), places, _LISTED_AT_ONCE)
    sizes: dict[str, int] = {}
    for place, listing in zip(places, listings, strict=True):
        sizes |= {f"{place}/{name}": num_bytes for name, num_bytes in listing.items()}
    return sizes


def places_of(names: Iterable[str]) -> list[str]:
    """Returns the folders of the passes that some shards belong to, sorted."""
    return sorted({name.rpartition("/")[0] for name in names})


def seals_of(tasks: Iterable[ShardTask]) -> dict[str, Seal]:
    """Returns the seal that each task's shard must have, by the name of the shard."""
    return {task.name: task.contents.seal for task in tasks}


def read_records(
    folder: Folder, seals: Mapping[str, Seal], settings_hash: str, spool: BlockSpool
) -> Built:
    """Returns those of some shards that are finished.

    A shard is finished if it has a valid record (`accept_record`), and its file has the size that
    the record states.

    Args:
        folder: The folder of the dataset.
        seals: The shards to look for: by the name of each the seal of its documents.
        settings_hash: Hash of the dataset's settings.
        spool: Receives the block tables of the finished shards.
    """
    places = places_of(seals)
    shard_sizes = list_places(folder, places)
    record_sizes = list_places(folder, [f"{RECORDS}/{place}" for place in places])
    present = [name for name in seals if name in shard_sizes and record_name(name) in record_sizes]
    contents = folder.read_each([record_name(name) for name in present], record_sizes)
    built: Built = {}
    for name, data in zip(present, contents, strict=True):
        record = accept_record(data, name, seals[name], settings_hash)
        if record is not None and record.shard.num_bytes == shard_sizes[name]:
            built[name] = (record.shard, spool.keep(record.blocks))
    return built


def planned_groups(tasks: Sequence[ShardTask], built: Built) -> tuple[Group, ...]:
    """Returns the groups for the manifest of a dataset that is being built, by split and length.

    The numbers of passes and shards are those that the finished dataset will have. All other counts
    are 0.

    Args:
        tasks: All shards that this build plans.
        built: The shards that are finished. A dataset to which a build adds passes or lengths may
            have shards that are not in `tasks`; they count too.
    """
    shards = {(task.bucket.split, task.seq_len, task.pass_index, task.name) for task in tasks}
    for shard, _ in built.values():
        shards.add((shard.split, shard.seq_len, shard.pass_index, shard.name))
    passes: dict[tuple[str, int], list[int]] = {}  # the number of the pass of every shard
    for split, seq_len, pass_index, _ in shards:
        passes.setdefault((split, seq_len), []).append(pass_index)
    return tuple(
        Group(split, seq_len, len(set(indexes)), len(indexes), *[0] * 6)
        for (split, seq_len), indexes in sorted(passes.items())
    )


def publish_dataset(folder: Folder, built: Built, manifest: Manifest) -> None:
    """Writes pass.json of every pass, the tables of shards and blocks, then the manifest.

    If a manifest is replaced, records of all shards are written first and the old manifest is
    removed. All records stay until the new manifest is there, so that a kill loses no shard.

    Args:
        folder: The folder of the dataset.
        built: All its shards.
        manifest: The manifest, without the hashes of the tables.
    """
    ordered = [built[name] for name in sorted(built)]
    shards = [shard for shard, _ in ordered]
    if folder.exists(MANIFEST):
        folder.write(SETTINGS, json_bytes(manifest.settings))

        def write_record(row: tuple[Shard, Callable[[], BlockTable]]) -> None:
            shard, read_blocks = row
            record = ShardRecord(manifest.settings_hash, shard, read_blocks())
            folder.write(record_name(shard.name), format_record(record))

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
    the build is still at work. Only local disks are searched for temporary files: a store has none,
    and the many files of a large dataset need not be listed there.
    """
    records = [f"{RECORDS}/{name}" for name in (folder / RECORDS).list()]
    temporaries = find_temporaries(folder.list()) if folder.is_local else []
    folder.remove(sorted({*records, *temporaries, PLAN, SETTINGS}))


def refuse_redacted(folder: Folder) -> None:
    """Raises a ValueError if a folder holds a redacted dataset, finished or not.

    A build would add instances of the documents that were left out, or other files about them.

    Args:
        folder: The folder that a build is about to write to.
    """
    settings: Mapping[str, Any] = {}
    if folder.exists(MANIFEST):
        settings = parse_manifest(folder.read(MANIFEST), folder.locate(MANIFEST)).settings
    elif folder.exists(SETTINGS):
        begin_again = f"delete {folder.locate(SETTINGS)} and run the same command again"
        settings = read_object(folder, SETTINGS, begin_again)
    if is_redacted(settings):
        raise ValueError(
            f"{folder.url} holds a redacted dataset, to which no build can add anything; give"
            " another --output"
        )


def remove_unfinished(folder: Folder) -> None:
    """Removes the shards and records of a build that is not finished, if there is one.

    Nothing is removed if there is a manifest, which means that the dataset is finished, or if there
    are no records.
    """
    if not (folder / RECORDS).list():
        return
    files = folder.list()
    if MANIFEST not in files:
        names = [name for name in files if _OF_A_BUILD.fullmatch(name)]
        say(f"{folder.url}: the unfinished build there, {len(names):,} files, begins again")
        folder.remove(names)
