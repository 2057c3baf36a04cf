"""Peers of the loader, each over the same rows: run by scripts/bench/load.py, which writes the rows and this folder.

    PYTHON scripts/bench/load_peers.py LOADER FOLDER SEQ_LEN BATCH INSTANCES

FOLDER/rows.npy holds uint16 rows; what a loader reads lies in FOLDER/LOADER and is made first. Libraries of samples
store the fields of a row as fields and collate them themselves; `raw` and webdataset store whole rows. `finish` makes
of a batch what a model takes. Prints one JSON line of the instances and the CPU seconds they took, all threads
included.
"""

import io
import itertools
import json
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
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
    return {"ids": rows[..., :seq_len], "lengths": lengths, "positions": ends[..., :half], "labels": ends[..., half:]}


def read_raw(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """The limit: a file read in order, its bytes taken as rows."""
    import torch

    path = folder / "rows.bin"
    if not path.exists():
        path.write_bytes(rows.tobytes())
    size = batch * rows.shape[1] * rows.itemsize
    with path.open("rb", buffering=0) as file:
        while len(data := file.read(size)) == size:
            yield cut_fields(torch.from_numpy(np.frombuffer(bytearray(data), np.int16).reshape(batch, -1)), seq_len)


def read_webdataset_rows(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """One member for each instance."""
    return _read_webdataset(rows, folder, batch, seq_len, 1)


def read_webdataset_blocks(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """One member for 256 instances."""
    return _read_webdataset(rows, folder, batch, seq_len, ROWS_PER_MEMBER)


def _read_webdataset(rows: Any, folder: Path, batch: int, seq_len: int, rows_per_member: int) -> Iterator[Any]:
    import torch
    import webdataset

    path, width = folder / "shard.tar", rows.shape[1]
    if not path.exists():
        with tarfile.open(path, "w") as tar:
            for number, start in enumerate(range(0, len(rows) - rows_per_member + 1, rows_per_member)):
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
    """mosaicml-streaming, in order and in one process."""
    import streaming
    from torch.utils.data import DataLoader

    streaming.base.util.clean_stale_shared_memory()
    path = folder / "mds"
    if not path.exists():
        columns = {name: f"ndarray:int16:{len(field)}" for name, field in cut_fields(rows[0], seq_len).items()}
        with streaming.MDSWriter(out=str(path), columns=columns) as writer:
            for row in rows.view(np.int16):
                writer.write(cut_fields(row, seq_len))
    dataset = streaming.StreamingDataset(local=str(path), shuffle=False, batch_size=batch)
    return iter(DataLoader(dataset, batch_size=batch, drop_last=True))


class _TakeRow:
    """A function that litdata can send to its workers."""

    def __init__(self, path: str, seq_len: int) -> None:
        self.path, self.seq_len = path, seq_len

    def __call__(self, index: int) -> Any:
        import torch

        row = np.load(self.path, mmap_mode="r")[index].view(np.int16).copy()
        return {name: torch.from_numpy(field) for name, field in cut_fields(row, self.seq_len).items()}


def read_litdata(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """litdata, in order and in one process."""
    import litdata

    path = folder / "chunks"
    if not path.exists():
        take = _TakeRow(str(folder.parent / "rows.npy"), seq_len)
        litdata.optimize(take, list(range(len(rows))), str(path), chunk_bytes="64MB", num_workers=1)
    dataset = litdata.StreamingDataset(str(path), shuffle=False)
    return iter(litdata.StreamingDataLoader(dataset, batch_size=batch, num_workers=0, drop_last=True))


def read_datasets(rows: Any, folder: Path, batch: int, seq_len: int) -> Iterator[Any]:
    """Hugging Face datasets: an Arrow file, memory-mapped."""
    import datasets

    path = folder / "arrow"
    if not path.exists():
        fields = cut_fields(rows.view(np.int16), seq_len)
        kinds = {n: datasets.Sequence(datasets.Value("int16"), length=field.shape[1]) for n, field in fields.items()}
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
    "litdata": read_litdata,
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

    The clock starts and stops when threads that read ahead have come to rest, so that as much is read in between as is
    delivered: else what a loader of a long run does once, filling its read-ahead, would weigh on a short measurement.
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
