"""Exports the instances of one split and sequence length, one file per shard.

The file _export.json is written last, and shows that the export is complete. If an export was
interrupted, the same call writes the missing files.
"""

import errno
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from pipeline.export.parquet import write_rows
from pipeline.export.tfrecord import write_records
from pipeline.instances.masking import most_predictions
from pipeline.shards.block import Block
from pipeline.shards.dataset import Dataset, read_blocks
from pipeline.shards.instance_kind import has_pairs
from pipeline.shards.records import Shard, json_bytes
from pipeline.shards.unpack import check_block
from pipeline.storage.faults import StorageError
from pipeline.storage.folder import Folder
from pipeline.storage.json_files import read_object
from pipeline.storage.local import find_temporaries
from pipeline.storage.tensorflow_bytes import masked_crc32c

STARTED = "_started.json"
"""File that holds the plan of an export until all files are there."""
FINISHED = "_export.json"
"""File that holds the plan once all files are there.

Readers of whole folders skip names that begin with an underscore.
"""
_READ_AT_ONCE = 8


@dataclass(frozen=True)
class ExportFormat:
    """A format of exported files.

    Attributes:
        write_file: Writes the instances of one shard to a file. Its arguments are the open file,
            the blocks of the shard, and the result of `plan_export`.
        usage: The command or call by which a user reads the files. It is a format string, in which
            `{url}` is the folder and other names in braces are keys of the plan.
    """

    write_file: Callable[[IO[bytes], Iterator[Block], Mapping[str, Any]], None]
    usage: str


EXPORT_FORMATS = {
    "tfrecord": ExportFormat(
        write_records,
        "run_pretraining.py --input_file='{url}/*.tfrecord' --max_seq_length={seq_len}"
        " --max_predictions_per_seq={max_predictions}",
    ),
    "parquet": ExportFormat(
        write_rows, "datasets.load_dataset('parquet', data_files='{url}/*.parquet')"
    ),
}


def plan_export(
    dataset: Dataset, format_name: str, split: str, seq_len: int | None
) -> dict[str, Any]:
    """Plans an export of all instances of one split and sequence length, from all passes.

    Args:
        dataset: The dataset.
        format_name: A key of EXPORT_FORMATS.
        split: "train" or "validation".
        seq_len: The sequence length of the instances; None if the dataset has only one.

    Returns:
        The plan, which _export.json holds. Its `files` map the name of each file to the name of the
        shard that is exported to it. Other keys describe the instances and the dataset.

    Raises:
        ValueError: The split has no instances; or `seq_len` is None, and the split has several
            sequence lengths.
    """
    manifest = dataset.manifest
    lengths = sorted({group.seq_len for group in manifest.groups if group.split == split})
    if not lengths:
        raise ValueError(f"{dataset.url} has no {split} instances")
    if seq_len is None and len(lengths) > 1:
        found = f"{split} instances of the lengths {lengths}"
        raise ValueError(f"{dataset.url} has {found}; give one of them as --seq_len")
    length = seq_len or lengths[0]
    shards = _shards(dataset, split, length)
    return {
        "format": format_name,
        "root_hash": manifest.root_hash,
        "settings": manifest.settings,
        "split": split,
        "seq_len": length,
        "max_predictions": most_predictions(manifest.settings, length),
        "vocab_size": manifest.vocab_size,
        "instances": sum(shard.instances for shard in shards),
        "files": {
            f"{split}-{number:05d}-of-{len(shards):05d}.{format_name}": shard.name
            for number, shard in enumerate(shards)
        },
    }


def write_export(dataset: Dataset, plan: Mapping[str, Any], output: Folder) -> None:
    """Writes the files of an export that its folder does not hold yet.

    Memory holds few blocks at a time.

    Args:
        dataset: The dataset.
        plan: The result of `plan_export`.
        output: The folder for the files. It must be empty, or hold a part of the same export.

    Raises:
        ModuleNotFoundError: The format needs a package that is not installed.
        StorageError: A file cannot be stored.
        ValueError: The folder holds other files, or a shard is damaged.
    """
    if plan["format"] == "tfrecord":
        masked_crc32c(b"")  # so that a missing package is named before anything is written
    existing = _claim(output, plan)
    if FINISHED in existing:
        return

    shards = _shards(dataset, plan["split"], plan["seq_len"])
    files = zip(plan["files"], shards, strict=True)
    missing = [(name, shard) for name, shard in files if name not in existing]
    bar: dict[str, Any] = {"desc": "export", "unit": " instances", "unit_scale": True}
    total = sum(shard.instances for _, shard in missing)
    with tqdm(total=total, disable=None, **bar) as progress:
        for name, shard in missing:
            blocks = _checked_blocks(dataset, shard, plan, progress.update)
            _write_file(output, name, blocks, plan)

    output.write(FINISHED, json_bytes(plan))
    output.remove([STARTED])


def describe_export(plan: Mapping[str, Any], url: str) -> str:
    """Returns two lines for the user: what was written to a folder, and how the files are read.

    Args:
        plan: The result of `plan_export`.
        url: The folder.
    """
    written = f"{url}: {len(plan['files'])} files, {plan['instances']:,} instances"
    if not has_pairs(plan["settings"]):
        written += (
            " of one segment: segment_ids and next_sentence_labels are all 0, so next sentence"
            " prediction cannot be learned from them"
        )
    usage = EXPORT_FORMATS[plan["format"]].usage.format(url=url, **plan)
    return f"{written}\n{usage}"


def _shards(dataset: Dataset, split: str, seq_len: int) -> list[Shard]:
    """Returns the shards of a split and sequence length, of all passes, ordered by name."""
    passes = range(dataset.num_passes(split, seq_len))
    return [shard for number in passes for shard in dataset.shards(split, seq_len, number)]


def _claim(output: Folder, plan: Mapping[str, Any]) -> set[str]:
    """Prepares a folder for an export, or finds out how much of the export it holds.

    If the export is not complete, the folder gets the file _started.json, which holds the plan. A
    later call recognizes the folder by it. Temporary files of killed processes are removed.

    Args:
        output: The folder.
        plan: The result of `plan_export`.

    Returns:
        The names of the files that the folder holds. _export.json is among them only if all files
        of the plan are.

    Raises:
        ValueError: The folder holds other files, or another export.
    """
    existing = output.list()
    outdated = {*find_temporaries(existing)}
    marker = next((name for name in (FINISHED, STARTED) if name in existing), None)
    expected = {*plan["files"], STARTED, FINISHED} if marker else set()
    if foreign := sorted(existing.keys() - expected - outdated):
        what = f"{foreign[0]}, which is not of this export"
        raise ValueError(f"{output.locate()} holds {what}; give an empty --output")
    if marker:
        _refuse_other_export(output, marker, plan)

    if marker == FINISHED and plan["files"].keys() <= existing.keys():
        outdated.add(STARTED)
    else:
        output.write(STARTED, json_bytes(plan))
        outdated.add(FINISHED)  # somebody may have removed files of a finished export
    output.remove(outdated & existing.keys())
    return existing.keys() - outdated


def _refuse_other_export(output: Folder, marker: str, plan: Mapping[str, Any]) -> None:
    """Refuses a folder that holds an export with another plan.

    Args:
        output: The folder.
        marker: The file of the folder that holds its plan.
        plan: The plan that the folder should hold.

    Raises:
        ValueError: The plans differ.
    """
    where = output.locate(marker)
    then = read_object(output, marker, "give an empty --output")
    differing = [name for name, value in plan.items() if then.get(name) != value]
    if differing:
        name = differing[0]
        change = f"{name} is {then.get(name)!r}, now {plan[name]!r}"
        raise ValueError(f"{where} is of another export: {change}; give an empty --output")


def _checked_blocks(
    dataset: Dataset, shard: Shard, plan: Mapping[str, Any], report: Callable[[int], object]
) -> Iterator[Block]:
    """Checks the blocks of a shard, and yields those that have instances, lazily.

    Args:
        dataset: The dataset.
        shard: The shard.
        plan: The result of `plan_export`.
        report: Called with the number of instances of each block, for a progress bar.

    Raises:
        ValueError: A block has values that the dataset's settings do not allow, such as too many
            masked positions.
    """
    most = plan["max_predictions"]
    for number, block in enumerate(read_blocks(dataset, shard, _READ_AT_ONCE)):
        where = f"{dataset.locate(shard.name)} block {number}"
        check_block(block, plan["seq_len"], dataset.vocab_size, where)
        counts = np.diff(block.masked_offsets)
        if wrong := counts[(counts < 1) | (counts > most)].tolist():
            found = f"an instance of {wrong[0]} masked positions"
            allowed = f"the dataset's settings allow 1 to {most}"
            raise ValueError(f"{where}: {found}, {allowed}; restore or rebuild the dataset")
        if block.num_instances:
            yield block
        report(block.num_instances)


def _write_file(
    output: Folder, name: str, blocks: Iterator[Block], plan: Mapping[str, Any]
) -> None:
    """Writes one file of an export.

    It is written as a temporary file of this machine, and copied to the folder when it is complete.

    Args:
        output: The folder of the export.
        name: The name of the file in the folder.
        blocks: The instances.
        plan: The result of `plan_export`.

    Raises:
        StorageError: The disk of temporary files is full, or the file cannot be stored.
    """
    with tempfile.NamedTemporaryFile(prefix="beambert-export-") as file:
        try:
            EXPORT_FORMATS[plan["format"]].write_file(file, blocks, plan)
            file.flush()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            hint = "let TMPDIR name a folder with more room"
            raise StorageError(f"{tempfile.gettempdir()}: no room for {name}; {hint}") from error
        output.write(name, Path(file.name))
