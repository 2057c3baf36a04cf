"""CPU-seconds of WriteToWebDataset beside webdataset.ShardWriter, on the same samples.

python -m scripts.bench.webdataset --samples 100000 --bytes 4000
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import apache_beam as beam
import webdataset
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.transforms import WriteToWebDataset
from scripts.bench.measured import print_result
from scripts.checkout import make_parser

_RUNNER = ["--runner=FnApiRunner", "--direct_num_workers=1", "--direct_running_mode=in_memory"]


def make_samples(first: int, stop: int, num_bytes: int) -> list[dict[str, Any]]:
    """Samples of random bytes, the same at every call."""
    return [
        {"__key__": f"{number:09d}", "bin": Random(number).randbytes(num_bytes)}
        for number in range(first, stop)
    ]


def write_peer(folder: Path, samples: int, num_bytes: int) -> None:
    """As webdataset writes them."""
    with webdataset.ShardWriter(f"{folder}/shard-%06d.tar", maxsize=2**28, verbose=0) as writer:
        for sample in make_samples(0, samples, num_bytes):
            writer.write(sample)


def write_own(folder: Path, samples: int, num_bytes: int) -> None:
    """As the transform writes them."""
    starts = range(0, samples, 1000)
    with beam.Pipeline(options=PipelineOptions(_RUNNER)) as pipeline:
        _ = (
            pipeline
            | beam.Create(starts)
            | beam.FlatMap(lambda start: make_samples(start, min(start + 1000, samples), num_bytes))
            | WriteToWebDataset(str(folder))
        )


def measure(write: Callable[[Path, int, int], None], samples: int, num_bytes: int) -> float:
    """CPU-seconds of this process."""
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        began = time.process_time()
        write(Path(folder), samples, num_bytes)
        return round(time.process_time() - began, 2)


def main() -> None:
    """Both, each three times in turn."""
    parser = make_parser(__doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=3)
    own = parser.parse_args()
    peer, ours = zip(
        *(
            [measure(write, own.samples, own.bytes) for write in (write_peer, write_own)]
            for _ in range(own.runs)
        ),
        strict=True,
    )
    packages = ("apache-beam", "webdataset")
    found = {"shard_writer_seconds": peer, "transform_seconds": ours}
    print_result("webdataset", vars(own), packages, **found, times=round(min(ours) / min(peer), 2))


if __name__ == "__main__":
    main()
