"""The program of a Dataflow Flex Template: JSON lines become the token parts of a dataset.

    python write_tokens.py --input 'gs://bucket/text/*.jsonl' --output gs://bucket/data --vocab gs://bucket/vocab.txt

`python -m pipeline shards` with the same settings then makes the dataset. write_tokens.json beside
this file lists the parameters for `gcloud dataflow flex-template build`; docs/runners.md has the
commands. The program uses public names alone, so it runs wherever the package is installed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import yaml
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline import Document, WriteTokens

SETTINGS = ("words", "lower_case", "language", "min_characters", "max_characters", "languages")
"""Settings of a build that may be given as parameters; their values are written as in YAML."""


def read_text(file_and_line: tuple[str, str], text_field: str) -> Document:
    """Returns the document of a line of JSON.

    Args:
        file_and_line: The URL of the file, and the line.
        text_field: The name of the field that holds the text.

    Raises:
        ValueError: The line is not a JSON object that has a text in this field.
    """
    file, line = file_and_line
    try:
        text = json.loads(line)[text_field]
    except (ValueError, TypeError, LookupError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise ValueError(  # noqa: TRY004 - the fault is in a file
            f"{file}: found the line {line[:80]!r}, expected a JSON object with a text in"
            f" {text_field!r}; mend the line, or give the field by --text_field"
        )
    return Document(text, file)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the parameters that write_tokens.json lists."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--input", required=True, help="Files of JSON lines: a glob or a file.")
    parser.add_argument("--text_field", default="text", help="The field that holds the text.")
    parser.add_argument("--output", required=True, help="Folder of the dataset.")
    parser.add_argument("--vocab", required=True, help="A vocab.txt.")
    for name in SETTINGS:
        parser.add_argument(f"--{name}", help=f"The setting {name} of `python -m pipeline build`.")
    return parser


def main(arguments: Sequence[str]) -> None:
    """Runs the pipeline until its end, or submits it if a Flex Template's launcher calls this.

    Args:
        arguments: The parameters, and Beam's options.

    Raises:
        ValueError: A parameter has a value of a wrong type, or a line of the input is malformed.
    """
    parameters, beam_arguments = make_parser().parse_known_args(arguments)
    given = {name: getattr(parameters, name) for name in SETTINGS}
    settings: dict[str, Any] = {
        name: yaml.safe_load(value) for name, value in given.items() if value
    }
    with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
        files = pipeline | "Files" >> beam.Create([parameters.input])
        lines = files | beam.io.ReadAllFromText(with_filename=True)
        documents = lines | "ReadText" >> beam.Map(read_text, parameters.text_field)
        _ = documents | WriteTokens(parameters.output, parameters.vocab, **settings)


if __name__ == "__main__":
    main(sys.argv[1:])
