"""Writes generated samples as WebDataset; webdataset_transform measures what this program takes.

    python scripts/bench/webdataset_pipeline.py transform FOLDER 50000 [--runner=...]

Beam pickles the functions of a program by value, so workers need no copy of this file. That is why
webdataset_transform runs it as a program.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.transforms import WriteToWebDataset

NUM_CHUNKS = 200
"""A runner distributes the samples in so many pieces."""


def make_samples(
    chunk: int, num_samples: int, sample_bytes: int, num_chunks: int
) -> Iterator[dict[str, Any]]:
    """Yields the samples of a chunk: those whose number has this remainder.

    Args:
        chunk: Number of the chunk.
        num_samples: Number of samples in all chunks.
        sample_bytes: Size of the only entry of each sample.
        num_chunks: Number of chunks.
    """
    for number in range(chunk, num_samples, num_chunks):
        data = hashlib.shake_128(str(number).encode()).digest(sample_bytes)
        yield {"__key__": f"sample-{number:09d}", "bin": data}


def write_by_transform(settings: argparse.Namespace, beam_arguments: list[str]) -> None:
    """Writes the samples by `WriteToWebDataset`, on the runner that the arguments name."""
    write = WriteToWebDataset(
        settings.folder, max_bytes=settings.max_bytes, num_shards=settings.num_shards
    )
    with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
        samples = (
            pipeline
            | beam.Create(range(NUM_CHUNKS))
            | "Make"
            >> beam.FlatMap(make_samples, settings.samples, settings.sample_bytes, NUM_CHUNKS)
        )
        _ = samples | write


def write_by_shard_writer(settings: argparse.Namespace) -> None:
    """Writes the samples by `webdataset.ShardWriter`, in this process."""
    import webdataset

    pattern = f"{settings.folder}/shard-%06d.tar"
    with webdataset.ShardWriter(pattern, maxsize=settings.max_bytes, verbose=0) as writer:
        for sample in make_samples(0, settings.samples, settings.sample_bytes, 1):
            writer.write(sample)


def main() -> None:
    """Writes the samples, and prints the CPU seconds and the seconds of this process as JSON."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("writer", choices=["transform", "ShardWriter"])
    parser.add_argument("folder")
    parser.add_argument("samples", type=int)
    parser.add_argument("--sample_bytes", type=int, default=200)
    parser.add_argument("--max_bytes", type=int, default=2**22)
    parser.add_argument("--num_shards", type=int)
    settings, beam_arguments = parser.parse_known_args()
    if settings.writer == "ShardWriter":
        import webdataset  # noqa: F401  # its import is not measured
    began = time.monotonic()
    cpu_began = time.process_time()
    if settings.writer == "transform":
        write_by_transform(settings, beam_arguments)
    else:
        write_by_shard_writer(settings)
    cpu_seconds = time.process_time() - cpu_began
    print(json.dumps({"cpu_seconds": cpu_seconds, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
