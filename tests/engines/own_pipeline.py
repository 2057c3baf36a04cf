"""A Beam pipeline of one's own: documents to token parts, samples to shards, a dataset."""

import hashlib
import json
import sys

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.transforms import WriteTokens, WriteToWebDataset, finish_build

SIZES = {"seq_lens": [64, 128], "num_buckets": 8, "part_bytes": 65536}
SETTINGS = {"passes": 2, "workers": 1, **SIZES}


def main(source, output, vocab, *arguments):
    with beam.Pipeline(options=PipelineOptions(list(arguments))) as pipeline:
        texts = (
            pipeline
            | beam.io.ReadFromText(source)
            | "Text" >> beam.Map(lambda line: str(json.loads(line)["text"]))
        )
        _ = texts | WriteTokens(output, vocab, **SETTINGS)
        samples = texts | "Sample" >> beam.Map(
            lambda text: {"__key__": hashlib.sha256(text.encode()).hexdigest(), "txt": text}
        )
        _ = samples | WriteToWebDataset(f"{output}-samples", max_samples=99)
    own = arguments if any(each.startswith("--runner") for each in arguments) else ()
    finish_build(output, vocab, beam_arguments=own, **SETTINGS)


if __name__ == "__main__":
    main(*sys.argv[1:])
