"""Exports the instances of one split and length: one file a shard, and last the file that says that all are there."""

import errno
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from pipeline.export.mds import index_mds, prepare_mds
from pipeline.export.parquet import prepare_parquet
from pipeline.export.tfrecord import prepare_tfrecord
from pipeline.instances.masking import SETTINGS, most_predictions
from pipeline.shards.block import Block
from pipeline.shards.dataset import Dataset, read_blocks
from pipeline.shards.manifest import MANIFEST
from pipeline.shards.records import Shard, json_bytes
from pipeline.shards.verify import check_instances
from pipeline.storage.faults import StorageError
from pipeline.storage.folder import Folder
from pipeline.storage.local import find_temporaries

STARTED = "_started.json"
"""Says what is exported, from the first file on until all are there."""
FINISHED = "_export.json"
"""Says the same, and that all files are there. Readers of whole folders pass over names that begin so."""
_READ_AT_ONCE = 8


@dataclass(frozen=True)
class Selection:
    """The instances that are exported: all passes of one split and length.

    Attributes:
        dataset: Has them.
        split: Their split.
        seq_len: Most tokens of one.
        max_predictions: Most masked positions of one.
        shards: Their shards, in the order of their names.
    """

    dataset: Dataset
    split: str
    seq_len: int
    max_predictions: int
    shards: tuple[Shard, ...]

    @property
    def num_instances(self) -> int:
        """Instances of all shards."""
        return sum(shard.instances for shard in self.shards)


WriteFile = Callable[[IO[bytes], Iterator[Block], int], None]
"""Writes a file of some blocks, which have so many instances in all."""
Index = Callable[[Iterable[tuple[str, int, int]]], Mapping[str, bytes]]
"""Makes, of the name, bytes and instances of every file, the files that are written behind them."""


@dataclass(frozen=True)
class Format:
    """A format of the files.

    Attributes:
        file_name: The name of a file, with places for the split, its number and how many there are.
        prepare: Makes, of what _export.json will hold, what writes a file. It fails where a package
            is missing.
        usage: How the files are read, with places for the URL, its kind and what _export.json
            holds.
        index: Makes what is written behind the files.
    """

    file_name: str
    prepare: Callable[[Mapping[str, Any]], WriteFile]
    usage: str
    index: Index = lambda _: {}


FORMATS = {
    "tfrecord": Format(
        "{split}-{number:05d}-of-{total:05d}.tfrecord",
        prepare_tfrecord,
        "run_pretraining.py --input_file='{url}/*.tfrecord' --max_seq_length={seq_len}"
        " --max_predictions_per_seq={max_predictions}",
    ),
    "mds": Format(
        "shard.{number:05d}.mds",
        prepare_mds,
        "streaming.StreamingDataset({kind}='{url}')",
        index_mds,
    ),
    "parquet": Format(
        "{split}-{number:05d}-of-{total:05d}.parquet",
        prepare_parquet,
        "datasets.load_dataset('parquet', data_files='{url}/*.parquet')",
    ),
}


def select_instances(dataset: Dataset, split: str, seq_len: int | None) -> Selection:
    """The instances of a split and a length.

    Args:
        dataset: Has them.
        split: Their split.
        seq_len: Their length; None where the dataset has one only.

    Raises:
        ValueError: The dataset has no such instances, or several lengths where none is given; the
            message shows what there is. Or its settings do not say how many positions of an
            instance are masked at most.
    """
    lengths = sorted({group.seq_len for group in dataset.manifest.groups if group.split == split})
    if seq_len is None and len(lengths) > 1:
        raise ValueError(
            f"{dataset.url} has {split} instances of the lengths {lengths}; give one of them as --seq_len"
        )
    if not lengths:
        raise ValueError(f"{dataset.url} has no {split} instances")
    chosen = seq_len or lengths[0]
    passes = range(dataset.num_passes(split, chosen))
    if missing := [name for name in SETTINGS[:2] if name not in dataset.manifest.settings]:
        raise ValueError(
            f"{dataset.locate(MANIFEST)}: its settings lack {missing[0]}; build the dataset again"
        )
    shards = tuple(shard for number in passes for shard in dataset.shards(split, chosen, number))
    return Selection(
        dataset, split, chosen, most_predictions(dataset.manifest.settings, chosen), shards
    )


def write_export(selection: Selection, format_name: str, output: Folder) -> dict[str, Any]:
    """Writes the files that are not there yet, a block in memory at a time.

    Returns:
        Content of _export.json.

    Raises:
        ModuleNotFoundError: The format needs a package that is not installed.
        StorageError: A file cannot be stored.
        ValueError: The folder holds something else, or a shard is damaged.
    """
    plan = _describe(selection, format_name)
    made = FORMATS[format_name]
    write_file = made.prepare(plan)
    found = _claim(output, plan, {*plan["files"], *made.index(())})
    if FINISHED not in found:
        files = dict(zip(plan["files"], selection.shards, strict=True))
        missing = {name: shard for name, shard in files.items() if name not in found}
        _write_files(selection, missing, write_file, output)
        _finish(output, made.index, files, plan)
    return plan


def _write_files(
    selection: Selection, missing: Mapping[str, Shard], write_file: WriteFile, output: Folder
) -> None:
    total = selection.num_instances
    done = total - sum(shard.instances for shard in missing.values())
    with tqdm(
        total=total,
        initial=done,
        desc="export",
        unit=" instances",
        unit_scale=True,
        mininterval=1,
        disable=None,
    ) as progress:
        for name, shard in missing.items():
            blocks = _checked_blocks(selection, shard, progress.update)
            _write_shard(output, name, write_file, blocks, shard.instances)


def _finish(
    output: Folder, index: Index, files: Mapping[str, Shard], plan: Mapping[str, Any]
) -> None:
    sizes = output.list()
    for name, data in index(
        (name, sizes[name], shard.instances) for name, shard in files.items()
    ).items():
        output.write(name, data)
    output.write(FINISHED, json_bytes(plan))
    output.remove([STARTED])


def describe_export(finished: Mapping[str, Any], url: str) -> str:
    """What was written, and how it is read."""
    usage = FORMATS[finished["format"]].usage.format(
        url=url, kind="remote" if "://" in url else "local", **finished
    )
    return f"{url}: {len(finished['files'])} files, {finished['instances']:,} instances\n{usage}"


def _describe(selection: Selection, format_name: str) -> dict[str, Any]:
    """What has to be the same for a command to continue an export."""
    manifest, total = selection.dataset.manifest, len(selection.shards)
    file_name = FORMATS[format_name].file_name
    names = [
        file_name.format(split=selection.split, number=number, total=total)
        for number in range(total)
    ]
    return {
        "format": format_name,
        "root_hash": manifest.root_hash,
        "settings": manifest.settings,
        "split": selection.split,
        "seq_len": selection.seq_len,
        "max_predictions": selection.max_predictions,
        "vocab_size": manifest.vocab_size,
        "instances": selection.num_instances,
        "files": {name: shard.name for name, shard in zip(names, selection.shards, strict=True)},
    }


def _claim(output: Folder, plan: Mapping[str, Any], expected: Set[str]) -> dict[str, int]:
    """The files of this very export that are there, _export.json only beside all others; claims an empty folder."""
    found = output.list()
    left = find_temporaries(found)
    if foreign := sorted(found.keys() - {*expected, STARTED, FINISHED, *left}):
        raise ValueError(
            f"{output.locate()} holds {foreign[0]}, which is not of this export; give an empty --output"
        )
    marker = next((name for name in (FINISHED, STARTED) if name in found), None)
    if marker is not None:
        _refuse_other_export(output, marker, plan)
    elif found.keys() - {*left}:
        raise ValueError(
            f"{output.locate()} holds files without {STARTED} or {FINISHED}; give an empty --output"
        )
    if marker == FINISHED and expected <= found.keys():
        left += [STARTED]
    else:
        output.write(STARTED, json_bytes(plan))
        left += [FINISHED]  # somebody may have removed files
    output.remove({*left} & found.keys())
    return {name: size for name, size in found.items() if name not in left}


def _refuse_other_export(output: Folder, marker: str, plan: Mapping[str, Any]) -> None:
    where = output.locate(marker)
    try:
        then = json.loads(output.read(marker))
    except ValueError as error:
        raise ValueError(f"{where} is damaged: {error}; give an empty --output") from error
    if differing := [name for name, value in plan.items() if then.get(name) != value]:
        name = differing[0]
        raise ValueError(
            f"{where} is of another export: {name} is {then.get(name)!r}, now {plan[name]!r}; give an empty --output"
        )


def _checked_blocks(
    selection: Selection, shard: Shard, report: Callable[[int], object]
) -> Iterator[Block]:
    """The blocks of a shard, each held to what the dataset says of itself, and then reported by its instances."""
    where, vocab_size = selection.dataset.locate(shard.name), selection.dataset.vocab_size
    most, found = selection.max_predictions, 0
    for number, block in enumerate(read_blocks(selection.dataset, shard, _READ_AT_ONCE)):
        check_instances(block, vocab_size, selection.seq_len, f"{where} block {number}")
        counts = np.diff(block.masked_offsets)
        if wrong := counts[(counts < 1) | (counts > most)].tolist():
            raise ValueError(
                f"{where} block {number}: an instance of {wrong[0]} masked positions, the dataset's settings allow 1 to"
                f" {most}; restore or rebuild the dataset"
            )
        if block.num_instances:
            yield block
        found += block.num_instances
        report(block.num_instances)
    if found != shard.instances:
        raise ValueError(
            f"{where}: {found} instances, its table says {shard.instances}; restore or rebuild the dataset"
        )


def _write_shard(
    output: Folder, name: str, write_file: WriteFile, blocks: Iterator[Block], instances: int
) -> None:
    """Makes a file where TMPDIR says, and stores it whole."""
    with tempfile.NamedTemporaryFile(prefix="beambert-export-") as file:
        try:
            write_file(file, blocks, instances)
            file.flush()
        except OverflowError as error:
            raise ValueError(
                f"{output.locate(name)}: {error}; build the dataset with more --num_buckets"
            ) from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            where = tempfile.gettempdir()
            raise StorageError(
                f"{where}: no room for {name}; let TMPDIR name a folder with more room"
            ) from error
        output.write(name, Path(file.name))
