"""Peers of the loader, each over the same rows: run by scripts/bench/load.py, which writes the rows and this folder.

    PYTHON scripts/bench/load_peers.py LOADER FOLDER SEQ_LEN BATCH INSTANCES

FOLDER/rows.npy holds uint16 rows; what a loader reads lies in FOLDER/LOADER and is made first.
Libraries of samples store the fields of a row, or of 256 rows, as fields and collate them
themselves; `raw` and webdataset store whole rows. `finish` makes of a batch what a model takes.
Prints one JSON line of the instances and the CPU seconds they took, all threads included.
"""

import io
import itertools
import json
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROWS_PER_MEMBER = 256
NUM_LENGTHS = 4


def cut_fields(rows: Any, seq_len: int) -> dict[str, Any]:
    """The fields of a row or of rows: tokens; tokens, segment A, masked and label; masked positions; their labels."""
    ends = rows[..., seq_len + NUM_LENGTHS :]
    half = ends.shape[-1] // 2
    lengths = rows[..., seq_len : seq_len + NUM_LENGTHS]
    return {
        "ids": rows[..., :seq_len],
        "lengths": lengths,
        "positions": ends[..., :half],
        "labels": ends[..., half:],
    }


def read_raw(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """The limit: a file read in order, its bytes taken as rows."""
    import torch

    path = folder / "rows.bin"
    if not path.exists():
        path.write_bytes(rows.tobytes())
    size = batch * rows.shape[1] * rows.itemsize
    with path.open("rb", buffering=0) as file:
        while len(data := file.read(size)) == size:
            yield cut_fields(
                torch.from_numpy(np.frombuffer(bytearray(data), np.int16).reshape(batch, -1)),
                seq_len,
            )


def read_webdataset_rows(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """One member for each instance."""
    return _read_webdataset(rows, folder, batch, seq_len, 1)


def read_webdataset_blocks(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """One member for 256 instances."""
    return _read_webdataset(rows, folder, batch, seq_len, ROWS_PER_MEMBER)


def _read_webdataset(
    rows: Any, folder: Path, batch: int, seq_len: int, rows_per_member: int
) -> Iterator[Any]:
    import torch
    import webdataset

    path, width = folder / "shard.tar", rows.shape[1]
    if not path.exists():
        with tarfile.open(path, "w") as tar:
            for number, start in enumerate(
                range(0, len(rows) - rows_per_member + 1, rows_per_member)
            ):
                data = rows[start : start + rows_per_member].tobytes()
                member = tarfile.TarInfo(f"{number:08d}.bin")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    dataset = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)

    def collate(members: list[Any]) -> Any:
        joined = np.frombuffer(b"".join(member["bin"] for member in members), np.int16)
        return cut_fields(torch.from_numpy(joined.reshape(-1, width).copy()), seq_len)

    return iter(dataset.batched(batch // rows_per_member, collation_fn=collate, partial=False))


def read_mosaicml(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """mosaicml-streaming, in order and in one process: one sample for each instance."""
    return _read_mosaicml(rows, folder, batch, seq_len, 1)


def read_mosaicml_blocks(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """One sample for 256 instances."""
    return _read_mosaicml(rows, folder, batch, seq_len, ROWS_PER_MEMBER)


def _read_mosaicml(
    rows: Any, folder: Path, batch: int, seq_len: int, rows_per_sample: int
) -> Iterator[Any]:
    import streaming
    from torch.utils.data import DataLoader

    streaming.base.util.clean_stale_shared_memory()
    path = folder / "mds"
    if not path.exists():
        kinds = {
            name: f"ndarray:int16:{rows_per_sample * field.size}"
            for name, field in _fields(rows, seq_len)
        }
        with streaming.MDSWriter(out=str(path), columns=kinds) as writer:
            for start in range(0, len(rows) - rows_per_sample + 1, rows_per_sample):
                sample = cut_fields(rows[start : start + rows_per_sample].view(np.int16), seq_len)
                writer.write({name: field.ravel() for name, field in sample.items()})
    num_samples = batch // rows_per_sample
    dataset = streaming.StreamingDataset(local=str(path), shuffle=False, batch_size=num_samples)
    loader = DataLoader(dataset, batch_size=num_samples, drop_last=True)
    widths = {name: field.size for name, field in _fields(rows, seq_len)}
    return ({name: each[name].view(-1, width) for name, width in widths.items()} for each in loader)


def _fields(rows: Any, seq_len: int) -> Iterable[tuple[str, Any]]:
    return cut_fields(rows[0], seq_len).items()


class _TakeRows:
    """A function that litdata can send to its workers."""

    def __init__(self, path: str, seq_len: int, num_rows: int) -> None:
        self.path, self.seq_len, self.num_rows = path, seq_len, num_rows

    def __call__(self, index: int) -> Any:
        import torch

        first = index * self.num_rows
        rows = (
            np.load(self.path, mmap_mode="r")[first : first + self.num_rows].view(np.int16).copy()
        )
        fields = cut_fields(rows if self.num_rows > 1 else rows[0], self.seq_len)
        return {
            name: torch.from_numpy(np.ascontiguousarray(field)) for name, field in fields.items()
        }


def read_litdata(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """litdata, in order and in one process: one sample for each instance."""
    return _read_litdata(rows, folder, batch, seq_len, 1)


def read_litdata_blocks(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """One sample for 256 instances."""
    samples = _read_litdata(rows, folder, batch, seq_len, ROWS_PER_MEMBER)
    return ({name: field.flatten(0, 1) for name, field in each.items()} for each in samples)


def _read_litdata(
    rows: Any, folder: Path, batch: int, seq_len: int, rows_per_sample: int
) -> Iterator[Any]:
    import litdata

    path = folder / "chunks"
    if not path.exists():
        take = _TakeRows(str(folder.parent / "rows.npy"), seq_len, rows_per_sample)
        indices = list(range(len(rows) // rows_per_sample))
        litdata.optimize(take, indices, str(path), chunk_bytes="64MB", num_workers=1)
    dataset = litdata.StreamingDataset(str(path), shuffle=False)
    batch_size = batch // rows_per_sample
    return iter(
        litdata.StreamingDataLoader(dataset, batch_size=batch_size, num_workers=0, drop_last=True)
    )


def read_datasets(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """Hugging Face datasets: an Arrow file, memory-mapped."""
    import datasets

    path = folder / "arrow"
    if not path.exists():
        fields = cut_fields(rows.view(np.int16), seq_len)
        kinds = {
            n: datasets.Sequence(datasets.Value("int16"), length=field.shape[1])
            for n, field in fields.items()
        }
        datasets.Dataset.from_dict(fields, datasets.Features(kinds)).save_to_disk(str(path))
    table = datasets.load_from_disk(str(path)).with_format("torch")
    return iter(table.iter(batch, drop_last_batch=True))


def finish(fields: dict[str, Any]) -> tuple[Any, ...]:
    """What goes to a device, as narrow as ours: tokens, types and mask [B, L], positions, labels [B, P], label [B]."""
    import torch

    ids, lengths = fields["ids"], fields["lengths"]
    place = torch.arange(ids.shape[1], dtype=torch.int16)
    is_token = place < lengths[:, :1]
    types = (place >= lengths[:, 1:2]) & is_token
    return ids, types, is_token, fields["positions"], fields["labels"], lengths[:, 3]


LOADERS: dict[str, Callable[[Any, Path, int, int], Iterator[Any]]] = {
    "raw": read_raw,
    "webdataset-rows": read_webdataset_rows,
    "webdataset-blocks": read_webdataset_blocks,
    "mosaicml": read_mosaicml,
    "mosaicml-blocks": read_mosaicml_blocks,
    "litdata": read_litdata,
    "litdata-blocks": read_litdata_blocks,
    "datasets": read_datasets,
}


def rest() -> float:
    """CPU seconds of this process, read as soon as it has used less than 1 ms of them in 50 ms."""
    last = time.process_time()
    while True:
        time.sleep(0.05)
        if (now := time.process_time()) - last < 0.001:
            return now
        last = now


def measure(batches: Callable[[], Iterator[Any]], num_instances: int) -> dict[str, float]:
    """Instances and CPU seconds of at least num_instances after a first batch, over as many epochs as that takes.

    The clock starts and stops when threads that read ahead have come to rest, so that as much is
    read in between as is
    delivered: else what a loader of a long run does once, filling its read-ahead, would weigh on a
    short measurement.
    """
    stream = itertools.chain.from_iterable(batches() for _ in itertools.count())
    next(stream)
    began, wall, count = rest(), time.perf_counter(), 0
    while count < num_instances:
        count += len(next(stream))
    seconds = time.perf_counter() - wall
    return {"instances": count, "cpu_seconds": rest() - began, "seconds": seconds}


def main() -> int:
    """Measures one loader."""
    import torch

    torch.set_num_threads(1)
    name, path = sys.argv[1], Path(sys.argv[2])
    seq_len, batch, instances = map(int, sys.argv[3:])
    rows = np.load(path / "rows.npy", mmap_mode="r")
    folder = path / name
    folder.mkdir(exist_ok=True)

    def batches() -> Iterator[Any]:
        return (finish(found)[0] for found in LOADERS[name](rows, folder, batch, seq_len))

    print(json.dumps(measure(batches, instances)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
