"""Exports the instances of one split and length: a file a shard, and last one that says so."""

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
from pipeline.shards.records import Shard, json_bytes
from pipeline.shards.unpack import check_block
from pipeline.storage.faults import StorageError
from pipeline.storage.folder import Folder
from pipeline.storage.json_files import read_object
from pipeline.storage.local import find_temporaries
from pipeline.storage.tensorflow_bytes import masked_crc32c

STARTED = "_started.json"
"""Says what is exported, from the first file on until all are there."""
FINISHED = "_export.json"
"""Says the same, and that all files are there. Readers of folders pass over names that begin so."""
_READ_AT_ONCE = 8


@dataclass(frozen=True)
class Format:
    """How a file is written, and how the files are read; both take what _export.json holds."""

    write_file: Callable[[IO[bytes], Iterator[Block], Mapping[str, Any]], None]
    usage: str


FORMATS = {
    "tfrecord": Format(
        write_records,
        "run_pretraining.py --input_file='{url}/*.tfrecord' --max_seq_length={seq_len}"
        " --max_predictions_per_seq={max_predictions}",
    ),
    "parquet": Format(write_rows, "datasets.load_dataset('parquet', data_files='{url}/*.parquet')"),
}


def plan_export(
    dataset: Dataset, format_name: str, split: str, seq_len: int | None
) -> dict[str, Any]:
    """What _export.json will hold: which instances of all passes, and the shard of each file.

    Raises:
        ValueError: The dataset has no such instances, or several lengths where none is given.
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
    """Writes the files of a plan that are not there yet, a block in memory at a time.

    Raises:
        ModuleNotFoundError: The format needs a package that is not installed.
        StorageError: A file cannot be stored.
        ValueError: The folder holds something else, or a shard is damaged.
    """
    if plan["format"] == "tfrecord":
        masked_crc32c(b"")  # so that a missing package is named before anything is written
    found = _claim(output, plan)
    if FINISHED in found:
        return
    shards = _shards(dataset, plan["split"], plan["seq_len"])
    missing = [each for each in zip(plan["files"], shards, strict=True) if each[0] not in found]
    bar: dict[str, Any] = {"desc": "export", "unit": " instances", "unit_scale": True}
    total = sum(shard.instances for _, shard in missing)
    with tqdm(total=total, disable=None, **bar) as progress:
        for name, shard in missing:
            blocks = _checked_blocks(dataset, shard, plan, progress.update)
            _write_file(output, name, blocks, plan)
    output.write(FINISHED, json_bytes(plan))
    output.remove([STARTED])


def describe_export(plan: Mapping[str, Any], url: str) -> str:
    """What was written, and how it is read."""
    usage = FORMATS[plan["format"]].usage.format(url=url, **plan)
    return f"{url}: {len(plan['files'])} files, {plan['instances']:,} instances\n{usage}"


def _shards(dataset: Dataset, split: str, seq_len: int) -> list[Shard]:
    """Those of all passes, in the order of their names."""
    passes = range(dataset.num_passes(split, seq_len))
    return [shard for number in passes for shard in dataset.shards(split, seq_len, number)]


def _claim(output: Folder, plan: Mapping[str, Any]) -> set[str]:
    """The files of this very export that are there, of which _export.json says that all are.

    An empty folder is claimed.
    """
    found = output.list()
    left = {*find_temporaries(found)}
    marker = next((name for name in (FINISHED, STARTED) if name in found), None)
    expected = {*plan["files"], STARTED, FINISHED} if marker else set()
    if foreign := sorted(found.keys() - expected - left):
        what = f"{foreign[0]}, which is not of this export"
        raise ValueError(f"{output.locate()} holds {what}; give an empty --output")
    if marker:
        _refuse_other_export(output, marker, plan)
    if marker == FINISHED and plan["files"].keys() <= found.keys():
        left.add(STARTED)
    else:
        output.write(STARTED, json_bytes(plan))
        left.add(FINISHED)  # somebody may have removed files
    output.remove(left & found.keys())
    return found.keys() - left


def _refuse_other_export(output: Folder, marker: str, plan: Mapping[str, Any]) -> None:
    where = output.locate(marker)
    then = read_object(output, marker, "give an empty --output")
    if differing := [name for name, value in plan.items() if then.get(name) != value]:
        change = f"{(name := differing[0])} is {then.get(name)!r}, now {plan[name]!r}"
        raise ValueError(f"{where} is of another export: {change}; give an empty --output")


def _checked_blocks(
    dataset: Dataset, shard: Shard, plan: Mapping[str, Any], report: Callable[[int], object]
) -> Iterator[Block]:
    """The blocks of a shard, held to what the dataset says, then reported by their instances."""
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
    """Makes a file where TMPDIR says, and stores it whole."""
    with tempfile.NamedTemporaryFile(prefix="beambert-export-") as file:
        try:
            FORMATS[plan["format"]].write_file(file, blocks, plan)
            file.flush()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            hint = "let TMPDIR name a folder with more room"
            raise StorageError(f"{tempfile.gettempdir()}: no room for {name}; {hint}") from error
        output.write(name, Path(file.name))
