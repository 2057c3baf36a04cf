"""Offers the transforms for rows of tables, as Beam YAML calls them (configs/beam/provider.yaml).

The values of a row are not converted, so what the Python transforms refuse is refused here too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import apache_beam as beam

from pipeline.documents import Document
from pipeline.documents.source import Source
from pipeline.transforms.encoded_samples import RejectedSample
from pipeline.transforms.plain_values import as_mapping, to_plain
from pipeline.transforms.shard_plan import DEFAULT_NAME
from pipeline.transforms.tokens import WriteTokens
from pipeline.transforms.webdataset import WriteToWebDataset


def write_to_webdataset(
    url: str,
    key: str = "id",
    name: str = DEFAULT_NAME,
    max_bytes: int = 2**28,
    max_samples: int = 100_000,
    num_shards: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    error_handling: Mapping[str, str] | None = None,
) -> beam.PTransform:
    """Returns a transform that writes rows as samples by `WriteToWebDataset`.

    Args:
        url: The folder of the shards.
        key: The field that holds the key of a sample. Every other field is an entry, whose
            extension is the field's name.
        name: The beginning of the shards' names.
        max_bytes: The largest size of a shard, in bytes.
        max_samples: The most samples of a shard.
        num_shards: About how many shards there are to be, if that is known.
        storage_options: Options of the fsspec filesystem.
        error_handling: `{output: NAME}` leaves out rows that cannot be written. The output of that
            name has a row (`reason`, `key`, `msg`) for each of them. Without it such a row ends the
            job.

    Raises:
        ValueError: error_handling has no `output`, or something else.
    """
    if error_handling is not None and {*error_handling} != {"output"}:
        found = dict(error_handling)
        raise ValueError(f"error_handling is {found}, expected {{output: NAME}}")
    write = WriteToWebDataset(
        url,
        name,
        max_bytes,
        max_samples,
        storage_options,
        num_shards=num_shards,
        on_bad_sample="stop" if error_handling is None else "reject",
    )
    to_samples = "Samples" >> beam.Map(to_sample, key)
    if error_handling is None:
        return to_samples | write
    return to_samples | write | _RejectedRows(error_handling["output"])


class _RejectedRows(beam.PTransform):  # type: ignore[misc]
    """Turns the rejected samples of WriteToWebDataset into rows, in an output of a given name."""

    def __init__(self, output: str) -> None:
        super().__init__()
        self._output = output

    def expand(self, written: Mapping[str, beam.PCollection]) -> dict[str, beam.PCollection]:
        """Adds the conversion; returns both outputs."""
        return {
            "good": written["urls"],
            self._output: written["rejected"] | "RejectedRows" >> beam.Map(to_rejected_row),
        }


def to_rejected_row(rejected: RejectedSample) -> beam.Row:
    """Returns a rejected sample as a row of three texts."""
    return beam.Row(reason=rejected.reason, key=rejected.key, msg=rejected.message)


def write_tokens(
    output: str,
    vocab: str,
    text: str = "text",
    where: str | None = None,
    source: str | None = None,
    sources: Sequence[Mapping[str, Any]] = (),
    **settings: Any,
) -> beam.PTransform:
    """Returns a transform that writes rows as documents by `WriteTokens`.

    Args:
        output: The folder of the dataset.
        vocab: A vocab.txt, or a model that has one.
        text: The field that holds the text of a document.
        where: The field that holds a document's place, for messages; None if there is none.
        source: The field that holds the name of a document's source; None if there is none.
        sources: For each source the fields of its `Source`, without `input`: `name`, `weight` ...
        **settings: Other settings of a build.
    """
    read = beam.Map(row_to_document, text, where, source)
    named = {"sources": list(map(make_source, sources))} if sources else {}
    return "Texts" >> read | WriteTokens(output, vocab, **named, **settings)


def make_source(given: Mapping[str, Any]) -> Source:
    """Returns a source whose documents are in a PCollection, so that it has no input.

    Args:
        given: The other fields of the source, by their names.

    Raises:
        ValueError: The name is missing, or sources have no such field.
    """
    choices = [field.name for field in fields(Source) if field.name != "input"]
    unknown = sorted({*given} - {*choices})
    if unknown or "name" not in given:
        expected = f"no field {unknown[0]!r}" if unknown else "to have a name"
        raise ValueError(
            f"sources: found {dict(given)}, expected {expected}; a source has {', '.join(choices)}"
        )
    return Source(input=[], **given)


def to_sample(row: Any, key: str) -> dict[str, Any]:
    """Converts a row to a sample for WriteToWebDataset; rows inside it become dicts.

    Raises:
        ValueError: The row has no field named `key`.
    """
    values = to_plain(as_mapping(row))
    name = _take(values, key)
    return {"__key__": name, **{field: values[field] for field in values if field != key}}


def row_to_document(row: Any, text: str, where: str | None, source: str | None) -> Any:
    """Returns a row's text, or a Document if the row has a place or a source.

    The types are not checked: WriteTokens does that.

    Args:
        row: The row.
        text: The field that holds the text.
        where: The field that holds the place; None for none.
        source: The field that holds the source's name; None for none.

    Raises:
        ValueError: The row lacks one of these fields.
    """
    values = as_mapping(row)
    content = _take(values, text)
    if not (where or source):
        return content
    place = _take(values, where) if where else ""
    return Document(content, place, source=_take(values, source) if source else "")


def _take(values: Mapping[str, Any], field: str) -> Any:
    """Returns the value of a row's field.

    Raises:
        ValueError: The row has no such field.
    """
    if field not in values:
        raise ValueError(f"a row has no field {field!r}; it has {', '.join(map(str, values))}")
    return values[field]
