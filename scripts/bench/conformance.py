r"""What loaders promise, tried on each over the same rows: one JSON line a case.

    python -m scripts.bench.conformance FOLDER [--loaders NAME ...] [--random 200]

docs/streaming.md has the table. All loaders need an environment without this project's packages:

    pip install torch==2.14.1 webdataset==1.0.2 megatron-energon==7.4.1 litdata==0.2.76 \
        mosaicml-streaming==0.13.0 datasets==5.0.1 torchdata==0.11.0 s3fs==2026.6.0 \
        boto3==1.43.117 isal==1.9.1 zstandard==0.25.0 && pip install --no-deps -e .

Every rank is a process. A row tells what it should hold, so that others are seen.
Speed is rows a CPU-second of one process, all threads, read row by row into batches of 240.
"""

import argparse
import contextlib
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scripts.bench.measured import print_result
from scripts.checkout import make_parser
from tests.ports import free_port

NUM_FILES = 8
LENGTH = 128
BATCH = 24
STEPS = 83
SIZES = {"small": STEPS * BATCH, "large": 2000 * BATCH}
WORKERS = {"energon": 6}  # over all ranks, which a loader's documentation asks for
Rows = list[range]


class Place(NamedTuple):
    """Which share of which batches one process reads."""

    rank: int
    world: int
    workers: int
    shuffle: bool
    batch: int

    @property
    def share(self) -> dict[str, Any]:
        """Keyword arguments of a loader over samples, for this rank's share of a batch."""
        size = self.batch // self.world
        return {"batch_size": size, "num_workers": self.workers, "collate_fn": _stack}


def row_of(number: int) -> Any:
    """Returns the tokens that row `number` should hold, int16 [LENGTH].

    The first two tokens give the number.
    """
    row = 5 + (number * 31 + np.arange(LENGTH) * 7) % 29_000
    row[:2] = 5 + number % 1000, 5 + number // 1000
    return row.astype(np.int16)


def number_of(row: Any) -> int:
    """Returns the number of a row, or -1 if the tokens are not those of any row."""
    row = np.asarray(row, np.int64)
    number = int(row[0] - 5 + 1000 * (row[1] - 5))
    return number if number >= 0 and np.array_equal(row, row_of(number)) else -1


def _stack(samples: Iterable[Any]) -> Any:
    import torch

    rows = [each["ids"] if isinstance(each, dict) else each for each in samples]
    return torch.from_numpy(np.stack(rows))


def _write_beambert(folder: Path, files: Rows) -> None:
    from pipeline.shards.block import Block
    from tests.datasets import CLS, MASK, SEP, write_dataset

    def block(rows: range) -> Any:
        ids = np.array([[CLS, *row_of(n), SEP] for n in rows], np.uint16)
        labels, ids[:, 9] = ids[:, 9].copy(), MASK
        count, width = ids.shape
        numbers = np.array(rows, np.uint64)
        every = partial(np.full, count)
        offsets = np.arange(0, count * width + 1, width)
        masked = np.arange(count + 1)
        lists = ids.ravel(), offsets.astype(np.int32), every(40, np.uint16), every(9, np.uint16)
        ends = labels, masked.astype(np.int32), every(fill_value=False, dtype=bool)
        return Block(*lists, *ends, numbers, numbers)

    shards = {("train", 512, 0, n): [block(rows[k : k + 128]) for k in range(0, len(rows), 128)]
              for n, rows in enumerate(files)}  # fmt: skip
    write_dataset(folder, shards, 30_000, {"lower_case": True})


def _open_beambert(folder: Path, place: Place) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from trainer.stream.pipeline import planned_steps

    sizes: Any = {"rank": place.rank, "world_size": place.world, "global_batch": place.batch}
    stage, num_steps = (_padded, STEPS) if place.batch == BATCH else (_packed, None)
    steps = planned_steps(
        str(folder), "train", 512, **sizes, micro_tokens=2**20, seed=0, num_lanes=4,
        num_steps=num_steps,
    )  # fmt: skip
    return StatefulDataLoader(steps.map(stage), batch_size=None, num_workers=place.workers)


def _padded(step: Any) -> Any:
    from trainer.stream.batches.pack import pad_micro_batch

    [batch] = step.micro_batches
    padded = pad_micro_batch(batch, LENGTH + 2)
    return padded["input_ids"].where(padded["labels"] < 0, padded["labels"])[:, 1:-1]


def _packed(step: Any) -> Any:
    [batch] = step.micro_batches  # as it goes to a device
    return batch.is_random_next


def _write_webdataset(folder: Path, files: Rows) -> None:
    import webdataset

    for n, rows in enumerate(files):
        with webdataset.TarWriter(str(folder / f"shard-{n}.tar")) as tar:
            for row in rows:
                tar.write({"__key__": f"{row:08d}", "bin": row_of(row).tobytes()})


def _open_webdataset(folder: Path, place: Place) -> Any:
    import webdataset

    rows = webdataset.WebDataset(
        str(folder / f"shard-{{0..{NUM_FILES - 1}}}.tar"), nodesplitter=webdataset.split_by_node,
        shardshuffle=place.shuffle and NUM_FILES, seed=0, empty_check=False,
    )  # fmt: skip
    rows = (rows.shuffle(100, seed=0) if place.shuffle else rows).map(_from_bytes)
    return webdataset.WebLoader(rows, **place.share)


def _from_bytes(sample: Any) -> Any:
    return {"ids": np.frombuffer(sample["bin"], np.int16)}


def _write_energon(folder: Path, files: Rows) -> None:
    _write_webdataset(folder, files)
    sample = ["--sample-type", "TextSample", "--field-map", '{"text": "bin"}']
    _run_energon("prepare", "--non-interactive", "--split-ratio", "1,0,0", *sample, str(folder))


def _run_energon(*words: str) -> None:
    command = [sys.executable, "-m", "megatron.energon.cli.main", *words]
    subprocess.run(command, check=True, capture_output=True)


def _open_energon(folder: Path, place: Place) -> Any:
    import megatron.energon as energon

    def batch(_: Any, samples: Iterable[Any]) -> Any:
        return _stack(np.frombuffer(sample.text, np.int16) for sample in samples)

    encoder = type("Encoder", (energon.DefaultTaskEncoder,), {"decoder": None, "batch": batch})
    parts = WORKERS["energon"] if place.shuffle else 1
    sizes = {"rank": place.rank, "world_size": place.world, "num_workers": place.workers}
    config = energon.WorkerConfig(**sizes, global_error_handler=energon.reraise_exception)
    rows = energon.get_train_dataset(
        folder, worker_config=config, batch_size=place.batch // parts, task_encoder=encoder(),
        shuffle_buffer_size=100 * place.shuffle, max_samples_per_sequence=100, repeat=False,
    )  # fmt: skip
    return _EnergonLoader(energon.get_savable_loader(rows), parts // place.world)


class _EnergonLoader(NamedTuple):
    """Its loader by the names of the others; a batch is a micro-batch of each worker."""

    loader: Any
    parts: int

    def __iter__(self) -> Iterator[Any]:
        micro_batches = iter(self.loader)
        while parts := list(islice(micro_batches, self.parts)):
            yield np.concatenate(parts)

    def state_dict(self) -> Any:
        return self.loader.save_state_rank()

    def load_state_dict(self, state: Any) -> None:
        self.loader.restore_state_rank(state)


def _write_mosaicml(folder: Path, files: Rows) -> None:
    from streaming import MDSWriter

    kinds = {"ids": f"ndarray:int16:{LENGTH}"}
    limit = len(files[0]) * 264
    with MDSWriter(out=str(folder), columns=kinds, size_limit=limit, hashes=["xxh64"]) as writer:
        for row in (row for rows in files for row in rows):
            writer.write({"ids": row_of(row)})


def _open_mosaicml(folder: Path, place: Place) -> Any:
    import streaming

    streaming.base.util.clean_stale_shared_memory() if place.world == 1 else None
    rows = streaming.StreamingDataset(
        local=str(folder), shuffle=place.shuffle, batch_size=place.share["batch_size"],
        validate_hash="xxh64", shuffle_seed=0, num_canonical_nodes=1,
    )  # fmt: skip
    return streaming.StreamingDataLoader(rows, **place.share)


def _write_litdata(folder: Path, files: Rows) -> None:
    import litdata

    numbers = [row for rows in files for row in rows]
    litdata.optimize(_litdata_row, numbers, str(folder), chunk_size=len(files[0]), num_workers=1)


def _open_litdata(folder: Path, place: Place) -> Any:
    import litdata

    rows = litdata.StreamingDataset(str(folder), shuffle=place.shuffle, seed=0)
    return litdata.StreamingDataLoader(rows, **place.share)


def _litdata_row(number: int) -> Any:
    return {"ids": row_of(number)}


def _write_datasets(folder: Path, files: Rows) -> None:
    import datasets

    for n, rows in enumerate(files):
        table = datasets.Dataset.from_dict({"ids": [row_of(row) for row in rows]})
        table.to_parquet(str(folder / f"part-{n}.parquet"))


def _open_datasets(folder: Path, place: Place) -> Any:
    import datasets
    from datasets.distributed import split_dataset_by_node
    from torchdata.stateful_dataloader import StatefulDataLoader

    files = [str(folder / f"part-{n}.parquet") for n in range(NUM_FILES)]
    rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    rows = rows.shuffle(seed=0, buffer_size=100) if place.shuffle else rows
    rows = split_dataset_by_node(rows, place.rank, place.world)
    return StatefulDataLoader(rows, **place.share)


def _write_torchdata(folder: Path, files: Rows) -> None:
    for n, rows in enumerate(files):
        np.save(folder / f"part-{n}.npy", np.stack([row_of(row) for row in rows]))


def _open_torchdata(folder: Path, place: Place) -> Any:
    from torch.utils.data import ConcatDataset
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    files = [np.load(folder / f"part-{n}.npy", mmap_mode="r") for n in range(NUM_FILES)]
    rows: Any = ConcatDataset(files)
    sampler = StatefulDistributedSampler(rows, place.world, place.rank, place.shuffle, 0)
    return StatefulDataLoader(rows, sampler=sampler, **place.share)


LOADERS: dict[str, Any] = {
    "beambert": (_write_beambert, _open_beambert, "*.tar", "beambert"),
    "webdataset": (_write_webdataset, _open_webdataset, "*.tar", "webdataset"),
    "energon": (_write_energon, _open_energon, "*.tar", "megatron-energon"),
    "mosaicml": (_write_mosaicml, _open_mosaicml, "*.mds", "mosaicml-streaming"),
    "litdata": (_write_litdata, _open_litdata, "*.bin", "litdata"),
    "datasets": (_write_datasets, _open_datasets, "*.parquet", "datasets"),
    "torchdata": (_write_torchdata, _open_torchdata, "*.npy", "torchdata"),
}
"""How each one's data are written and opened, its data files, and the package it comes in."""


def take(loader: Iterable[Any], steps: int) -> list[list[int]]:
    """Returns the numbers of the rows of the first `steps` batches, or of all batches."""
    return [[number_of(row) for row in batch] for batch in islice(loader, steps)]


def run_rank(name: str, folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Does the work of one rank in this process.

    Returns:
        What the rank found, such as the row numbers of its "batches". "error" is there if an error
        ended it.
    """
    import torch

    place = Place(job["rank"], job["world"], job["workers"], job["kind"] != "speed", BATCH)
    opened = partial(LOADERS[name][1], folder)
    found = []
    try:
        if job["kind"] == "speed":
            return {"rows": _measure(opened(place._replace(batch=240)))}
        if job["kind"] == "random":
            return _resume_anywhere(partial(opened, place), job["count"])
        loader = opened(place)
        if job["state"]:
            state = f"{job['state']}-{place.rank if name in WORKERS else 0}"
            loader.load_state_dict(torch.load(state, weights_only=False))
        found = take(loader, job["steps"])
        if job["save"]:
            torch.save(loader.state_dict(), f"{job['save']}-{place.rank}")
    except Exception as error:  # noqa: BLE001 - it is the result
        return {"batches": found, "error": f"{type(error).__name__}: {error}"[:200]}
    return {"batches": found}


def _measure(loader: Any, seconds: float = 8.0) -> int:
    """Returns the rows that a loader gives per second of CPU time.

    It reads for some `seconds`, as many epochs as fit. The first batch is read before that.
    """
    next(iter(loader))
    began = time.process_time()
    rows = 0
    while time.process_time() < began + seconds:
        for batch in loader:
            rows += len(batch)
            if time.process_time() > began + seconds:
                break
    return round(rows / (time.process_time() - began))


def _resume_anywhere(opened: Callable[[], Any], count: int) -> dict[str, Any]:
    """States kept at random steps and opened anew: how many went on with the next three batches."""
    whole = take(opened(), STEPS)
    equal = 0
    draw = random.Random(0)
    for _ in range(count):
        done = draw.randrange(1, STEPS - 3)
        begun = opened()
        take(begun, done)
        state = pickle.dumps(begun.state_dict())
        begun = opened()
        begun.load_state_dict(pickle.loads(state))
        equal += take(begun, 3) == whole[done : done + 3]
    return {"equal": equal}


def run(name: str, folder: Path, world: int = 1, workers: int = 0, **job: Any) -> list[Any]:
    """Runs every rank in a process of its own, and returns what each of them found."""
    job = {"kind": "read", "steps": 10**6, "state": "", "save": "", "workers": workers, **job}
    common: dict[str, Any] = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "HF_HUB_OFFLINE": 1}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "PYTHONWARNINGS": "ignore"}
    pipes: Any = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(world):
            names = common | dict.fromkeys(("RANK", "LOCAL_RANK", "GLOBAL_RANK"), rank)
            environment = os.environ | {key: str(value) for key, value in names.items()}
            given = json.dumps({**job, "world": world, "rank": rank})
            words = ["-m", "scripts.bench.conformance", str(folder), "--rank", name, given]
            program = subprocess.Popen([sys.executable, *words], env=environment, **pipes)
            ranks.append(stack.enter_context(program))
        return [_outcome(each) for each in ranks]


def _outcome(program: "subprocess.Popen[str]") -> Any:
    try:
        printed, said = program.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        program.kill()
        return {"error": "no end within 600 s"}
    lines = [line for line in printed.splitlines() if line.startswith('{"found"')]
    return json.loads(lines[-1])["found"] if lines else {"error": said.strip()[-200:]}


def _compare(*runs: list[Any], in_order: bool = False) -> str:
    """Compares the batches that all ranks together read in several runs.

    Args:
        *runs: What `run` returned.
        in_order: Whether the rows of a batch must also have the same order. Otherwise it does not
            matter which rank read a row.

    Returns:
        "equal", "differ" or the first error.
    """
    if errors := [rank["error"] for ranks in runs for rank in ranks if "error" in rank]:
        return f"error: {errors[0]}"
    found = []
    for ranks in runs:
        steps = zip(*(rank["batches"] for rank in ranks), strict=False)
        joined = ([row for share in step for row in share] for step in steps)
        found.append([step if in_order else sorted(step) for step in joined])
    return "equal" if all(each == found[0] != [] for each in found) else "differ"


def _seen(ranks: list[Any]) -> str:
    """Returns in words how many rows an epoch lost, gave twice or gave wrong, or "whole"."""
    if errors := [rank["error"] for rank in ranks if "error" in rank]:
        return f"error: {errors[0]}"
    rows = Counter(row for rank in ranks for batch in rank["batches"] for row in batch)
    wrong = rows.pop(-1, 0)
    lost = SIZES["small"] - len(rows)
    doubled = sum(rows.values()) - len(rows)
    lost -= wrong if doubled == 0 else 0
    return f"{lost} lost, {doubled} doubled, {wrong} wrong" if wrong | lost | doubled else "whole"


def _spoil(name: str, folder: Path, fault: str) -> Path:
    """Copies the data, spoils one file of the copy, and returns the folder of the copy.

    Args:
        name: The loader.
        folder: The loader's data.
        fault: "flipped bit" changes a bit, within a row if the file holds rows uncompressed.
            "missing object" removes the file. Any other fault cuts it in half.
    """
    scratch = folder.with_name("spoilt")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(folder, scratch)
    path = sorted(scratch.rglob(LOADERS[name][2]))[NUM_FILES // 2]
    data = bytearray(path.read_bytes())
    row = row_of(SIZES["small"] // NUM_FILES * 9 // 2)
    data[data.find(row.tobytes()) + 100 if row.tobytes() in data else len(data) // 3] ^= 4
    path.write_bytes(data if fault == "flipped bit" else data[: len(data) // 2])
    if fault == "missing object":
        path.unlink()
    return scratch


def cases(name: str, folder: Path, count: int) -> Iterator[tuple[str, str]]:
    """Runs all cases of a loader. Yields the name of each case, and what the loader did."""
    read = partial(run, name, folder / "small")
    state = str(folder / "state")
    ranks = [{"world": n, "workers": WORKERS.get(name, 0) // n} for n in (1, 2, 3)]
    one, two, three = (read(**each) for each in ranks)
    alone, some, many = (read(workers=n) for n in (0, 2, 8))
    yield "batches of 1, 2, 3 ranks", _compare(one, two, three)
    yield "order of 0, 2, 8 workers", _compare(alone, some, many, in_order=True)
    yield "epoch of 3 ranks", _seen(three)
    yield "epoch of 8 workers", _seen(many)
    [found] = read(kind="random", count=count)
    yield f"resumed at {count} random steps", found.get("error") or f"{found['equal']} equal"

    def goes_on(whole: list[Any], before: dict[str, int], after: dict[str, int]) -> str:
        begun = read(**before, steps=7, save=state)
        if "error" in begun[0]:
            return _compare(begun)
        if name == "energon" and before != after:
            files = [f"{state}-{rank}" for rank in range(before["world"])]
            size = ["--new-world-size", str(after["world"])]
            _run_energon("checkpoint", "redist", *size, *files, str(folder))
        rest = [{**rank, "batches": rank.get("batches", [])[7:10]} for rank in whole]
        return _compare(rest, read(**after, steps=3, state=state), in_order="world" not in after)

    yield "resumed with 2 workers", goes_on(some, {"workers": 2}, {"workers": 2})
    yield "a state of 2 ranks on 3", goes_on(two, *ranks[1:])
    for fault in ("flipped bit", "short object", "missing object"):
        yield fault, _seen(run(name, _spoil(name, folder / "small", fault)))
    [found] = run(name, folder / "large", kind="speed")
    yield "rows a CPU-second", str(found.get("rows") or found["error"])


def main() -> int:
    """Tries all loaders, or is one rank of one."""
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loaders", nargs="+", default=[*LOADERS], choices=LOADERS)
    parser.add_argument("--random", type=int, default=200, help="states kept at random steps")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        found = run_rank(options.rank[0], options.folder, json.loads(options.rank[1]))
        print(json.dumps({"found": found}), flush=True)
        os._exit(0)
    for name in options.loaders:
        folder = options.folder.absolute() / name
        for size, num_rows in SIZES.items():
            if not (folder / size).exists():
                (folder / size).mkdir(parents=True)
                each = num_rows // NUM_FILES
                files = [range(n * each, (n + 1) * each) for n in range(NUM_FILES)]
                LOADERS[name][0](folder / size, files)
        packages = [LOADERS[name][3], "torch"]
        for case, outcome in cases(name, folder, options.random):
            when = f"{datetime.now(UTC):%Y-%m-%d}"
            found = {"loader": name, "date": when, "case": case, "found": outcome}
            print_result("conformance", {"random": options.random}, packages, **found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
