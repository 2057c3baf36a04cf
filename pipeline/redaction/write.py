"""Writes a redacted dataset: its shards, then its tables, and its manifest last.

    _tasks/settings.json                              the new dataset's settings, written first
    _tasks/train/L128/pass-00/shard-00000.tar.json    the record of a shard that was written anew

By these files the same command, run again after an interruption, sees what is finished. They are
removed when manifest.json is there.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from functools import partial

from tqdm import tqdm

from pipeline.inspect.dataset_card import write_card
from pipeline.inspect.summary import (
    REPORT_PAGE,
    SOURCES,
    load_report,
    read_report,
    write_page,
    write_report,
)
from pipeline.jobs.shard_records import ShardRecord, format_record, record_name
from pipeline.machine import this_machine
from pipeline.redaction.plan import RedactionPlan, refuse_lost_shards
from pipeline.redaction.rewrite import rewrite_shard
from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.document_ids import are_among, first_64_bits, iterate_id_rows
from pipeline.shards.manifest import DOCUMENT_IDS, MANIFEST, group_totals, root_hash
from pipeline.shards.records import Shard, json_bytes
from pipeline.shards.verify import TOKENIZER, VOCAB
from pipeline.stages.block_spool import BlockSpool, open_block_spool
from pipeline.stages.publish import (
    SETTINGS,
    Built,
    publish_dataset,
    read_records,
    remove_leftovers,
)
from pipeline.storage.ahead import AT_ONCE, map_ahead
from pipeline.storage.copies import copy_file, describe_copying, moves_bytes
from pipeline.storage.folder import Folder
from pipeline.storage.json_files import read_object
from pipeline.storage.locks import LOCK, locked_folder
from pipeline.tokens.dataset_ids import write_document_ids

_LOCK_SECONDS = 10.0  # to wait for a lock, which an interrupted command may still hold
_WRITTEN_AT_ONCE = 4
"""The most shards that are written anew at the same time; fewer if less memory is free."""
_MEMORY_OF_A_SHARD = 3
"""The memory that writing a shard takes, in sizes of its file: two copies of it, and blocks."""
_MOVED_AT_ONCE = 4
"""How many files are copied through this machine at the same time."""


def describe_plan(plan: RedactionPlan, list_name: str, output: Folder) -> Iterator[str]:
    """Yields lines that tell a person what a redaction will do.

    Args:
        plan: The plan.
        list_name: The list of documents.
        output: The folder of the new dataset.
    """
    dataset = plan.dataset
    num_instances = sum(shard.instances for shard in dataset.all_shards)
    yield (
        f"{len(plan.documents):,} document(s) of {list_name}: {plan.num_instances:,} of"
        f" {num_instances:,} instances of {dataset.url} hold one of them, and are left out"
    )
    yield f"{_count(plan.rewritten)} hold such instances and are written anew"
    yield f"{_count(plan.unchanged)} {describe_copying(dataset.folder, output)}"


def _count(shards: Sequence[Shard]) -> str:
    """Returns the number of some shards and their size, in words."""
    num_bytes = sum(shard.num_bytes for shard in shards)
    return f"{len(shards):,} shard(s) of {num_bytes / 1e6:,.2f} MB"


def check_output(plan: RedactionPlan, output: Folder) -> bool:
    """Checks that a folder may receive the new dataset; returns whether it is finished there.

    Nothing is written.

    Args:
        plan: The plan.
        output: The folder.

    Raises:
        FileExistsError: The folder holds something else, is a file, or is the folder of the old
            dataset, inside it, or around it.
        ValueError: The new dataset is finished there, and has lost a shard since.
    """
    old = plan.dataset.folder
    if old.contains(output) or output.contains(old):
        raise FileExistsError(
            f"--output {output.url} is {old.url}, or one of the two is inside the other; give a"
            " folder elsewhere, as the dataset is not changed"
        )
    if output.is_file():
        raise FileExistsError(f"--output {output.url} is a file; give a new folder")
    files = output.list()  # a store may not list what was written just now, so it is also asked
    if MANIFEST in files or output.exists(MANIFEST):
        finished = open_dataset(output.url, output.options)
        if finished.manifest.settings != plan.manifest.settings:
            raise FileExistsError(
                f"--output {output.url} holds another dataset, not {plan.dataset.url} without these"
                " documents; give another --output"
            )
        refuse_lost_shards(finished)
        return True
    if SETTINGS in files or output.exists(SETTINGS):
        advice = f"remove {output.url}, or give another --output"
        if read_object(output, SETTINGS, advice) != plan.manifest.settings:
            raise FileExistsError(
                f"--output {output.url} holds an unfinished dataset, not {plan.dataset.url} without"
                f" these documents; {advice}"
            )
        return False
    foreign = sorted(files.keys() - {LOCK})
    if foreign:
        raise FileExistsError(
            f"--output {output.url} holds other files, such as {foreign[0]}; give a new folder"
        )
    return False


def write_redaction(plan: RedactionPlan, output: Folder) -> Dataset:
    """Writes the new dataset, or what is missing of it, and returns it opened.

    Args:
        plan: The plan.
        output: The folder of the new dataset.

    Raises:
        FileExistsError: `check_output` refuses the folder, or another command writes into it.
        FileNotFoundError: A shard of the old dataset was removed meanwhile.
        StorageError: A store failed in every attempt, or the disk is full.
        ValueError: A file of the old dataset is damaged or was changed meanwhile, or a shard of the
            new dataset was lost.
    """
    with contextlib.ExitStack() as stack:
        if output.is_local:
            stack.enter_context(locked_folder(output.local_path(), LOCK, _LOCK_SECONDS))
        check_output(plan, output)  # another command may have written into it until now
        return _write(plan, output)


def _write(plan: RedactionPlan, output: Folder) -> Dataset:
    """Writes the new dataset as `write_redaction` does, into a folder that was locked and checked.

    A folder in a store cannot be locked.
    """
    if not output.exists(MANIFEST):
        output.write(SETTINGS, json_bytes(plan.manifest.settings))
        with open_block_spool() as spool:
            built = _rewrite_shards(plan, output, spool) | _copy_shards(plan, output)
            _write_small_files(plan, output)
            _refuse_lost(plan, built, output)
            _refuse_other_writer(plan, output)
            shards = [shard for shard, _ in built.values()]
            groups = group_totals(shards)
            manifest = dataclasses.replace(
                plan.manifest, groups=groups, root_hash=root_hash(shards), tables_sha256={}
            )
            publish_dataset(output, built, manifest)
    remove_leftovers(output)  # the command may have been killed after it wrote the manifest
    dataset = open_dataset(output.url, output.options)
    if not load_report(dataset):
        report = read_report(dataset)
        write_page(report, output, REPORT_PAGE)
        write_card(dataset, report)
        write_report(dataset, report)
    return dataset


def _rewrite_shards(plan: RedactionPlan, output: Folder, spool: BlockSpool) -> Built:
    """Writes the shards that hold instances to leave out, unless they are there.

    Args:
        plan: The plan.
        output: The folder of the new dataset.
        spool: Receives the block tables of these shards.

    Returns:
        All these shards, by their names.
    """
    seals = {shard.name: shard.seal for shard in plan.rewritten}
    settings_hash = plan.manifest.settings_hash
    built = read_records(output, seals, settings_hash, spool)
    missing = [shard for shard in plan.rewritten if shard.name not in built]
    largest = max((shard.num_bytes for shard in missing), default=0)
    threads, _ = this_machine().limit(_WRITTEN_AT_ONCE, len(missing), _MEMORY_OF_A_SHARD * largest)

    def rewrite(shard: Shard) -> int:
        tar, written, table = rewrite_shard(plan.dataset, shard, plan.rows[shard.name])
        output.write(shard.name, tar)
        record = format_record(ShardRecord(settings_hash, written, table))
        output.write(record_name(shard.name), record)
        return shard.num_bytes

    total = sum(shard.num_bytes for shard in missing)
    with tqdm(total=total, desc="write", unit="B", unit_scale=True, disable=None) as bar:
        for num_bytes in map_ahead(rewrite, missing, threads):
            bar.update(num_bytes)
    seals_of_missing = {shard.name: shard.seal for shard in missing}
    return built | read_records(output, seals_of_missing, settings_hash, spool)


def _copy_shards(plan: RedactionPlan, output: Folder) -> Built:
    """Copies the shards that hold no instance to leave out, unless they are there.

    Args:
        plan: The plan.
        output: The folder of the new dataset.

    Returns:
        All these shards, by their names.
    """
    dataset = plan.dataset
    sizes = output.list()
    missing = [shard for shard in plan.unchanged if sizes.get(shard.name) != shard.num_bytes]
    at_once = _MOVED_AT_ONCE if moves_bytes(dataset.folder, output) else AT_ONCE

    def copy(shard: Shard) -> int:
        copy_file(dataset.folder, output, shard.name, shard.sha256)
        return shard.num_bytes

    total = sum(shard.num_bytes for shard in missing)
    with tqdm(total=total, desc="copy", unit="B", unit_scale=True, disable=None) as bar:
        for num_bytes in map_ahead(copy, missing, at_once):
            bar.update(num_bytes)
    return {shard.name: (shard, partial(dataset.blocks, shard)) for shard in plan.unchanged}


def _write_small_files(plan: RedactionPlan, output: Folder) -> None:
    """Writes documents.ids, the vocabulary, and the table of input files if there is one."""
    dataset = plan.dataset
    write_document_ids(output, _kept_ids(plan))
    for name in (VOCAB, TOKENIZER):
        output.write(name, dataset.read_file(name))
    if dataset.folder.exists(SOURCES):
        output.write(SOURCES, dataset.folder.read(SOURCES))


def _kept_ids(plan: RedactionPlan) -> Iterator[bytes]:
    """Yields the rows of documents.ids that stay, in order.

    Raises:
        ValueError: After the last row, the file is not the one that was read for the plan.
    """
    dataset = plan.dataset
    digest = hashlib.blake2b(digest_size=32)
    for rows in iterate_id_rows(dataset):
        kept = rows[~are_among(first_64_bits(rows), plan.documents)].tobytes()
        digest.update(kept)
        yield kept
    if digest.hexdigest() != plan.manifest.settings["documents_hash"]:
        raise ValueError(
            f"{dataset.locate(DOCUMENT_IDS)} was changed while this command read it; run the same"
            " command again"
        )


def _refuse_other_writer(plan: RedactionPlan, output: Folder) -> None:
    """Checks, before the tables are written, that no other command wrote into the same folder.

    The lock of a local folder keeps other commands out. Stores have no locks.

    Args:
        plan: The plan.
        output: The folder of the new dataset.

    Raises:
        FileExistsError: A dataset is finished there, or the settings there are not the plan's.
    """
    cure = "wait until it has ended, remove the folder, and run the same command again"
    is_finished = output.exists(MANIFEST)
    settings = plan.manifest.settings
    if is_finished or (output.exists(SETTINGS) and read_object(output, SETTINGS, cure) != settings):
        raise FileExistsError(
            f"--output {output.url}: another command has written a dataset there at the same time;"
            f" {cure}"
        )


def _refuse_lost(plan: RedactionPlan, built: Built, output: Folder) -> None:
    """Checks that every shard of the new dataset is there and has its size.

    Args:
        plan: The plan.
        built: The shards that have been written or copied.
        output: The folder of the new dataset.

    Raises:
        ValueError: A shard is missing or has another size.
    """
    sizes = output.list()
    for shard in plan.shards:
        size = sizes.get(shard.name)
        if shard.name not in built or size != built[shard.name][0].num_bytes:
            found = "nothing" if size is None else f"{size:,} bytes"
            raise ValueError(
                f"{output.locate(shard.name)}: found {found}, not what was written: the store lost"
                " it, or another program changed it; run the same command again"
            )
