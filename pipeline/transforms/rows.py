"""Wraps `WriteToWebDataset` and `WriteTokens` for rows of tables, as Beam YAML has them.

configs/beam/provider.yaml names the functions that Beam YAML calls. The values of a row are passed
on without conversion, so a value of a wrong type is refused as it is in Python.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import apache_beam as beam
from apache_beam.typehints.row_type import RowTypeConstraint

from pipeline.documents import Document, DroppedDocument
from pipeline.documents.source import Source
from pipeline.transforms.encoded_samples import RejectedSample
from pipeline.transforms.plain_values import as_mapping, to_plain
from pipeline.transforms.shard_plan import DEFAULT_NAME
from pipeline.transforms.token_settings import list_settings
from pipeline.transforms.tokens import WriteTokens
from pipeline.transforms.webdataset import WriteToWebDataset

_REJECTED_ROW = RowTypeConstraint.from_fields([("reason", str), ("key", str), ("msg", str)])
_DROPPED_ROW = RowTypeConstraint.from_fields([("reason", str), ("where", str), ("text", str)])
# Beam YAML's own transforms, such as WriteToJson, take only rows whose fields have types.


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
        error_handling: The mapping `{output: NAME}`, or None. With it, a row that cannot be written
            is left out, and the output NAME has a row (`reason`, `key`, `msg`) about it. With None,
            a row that cannot be written ends the job.

    Raises:
        ValueError: `error_handling` has no key `output`, or has another key.
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
    """Renames the outputs of `WriteToWebDataset`, and turns its rejected samples into rows.

    The constructor takes the name of the output of these rows.
    """

    def __init__(self, output: str) -> None:
        super().__init__()
        self._output = output

    def expand(self, written: Mapping[str, beam.PCollection]) -> dict[str, beam.PCollection]:
        """Adds the step that turns rejected samples into rows.

        Args:
            written: The outputs "urls" and "rejected" of `WriteToWebDataset`.

        Returns:
            The URLs of the shards under "good", and the rows (`to_rejected_row`) under the name
            that the constructor got.
        """
        return {
            "good": written["urls"],
            self._output: written["rejected"]
            | "RejectedRows" >> beam.Map(to_rejected_row).with_output_types(_REJECTED_ROW),
        }


def to_rejected_row(rejected: RejectedSample) -> beam.Row:
    """Returns a row about a rejected sample, with the texts `reason`, `key` and `msg`."""
    return beam.Row(reason=rejected.reason, key=rejected.key, msg=rejected.message)


@list_settings
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

    The transform has two outputs of rows: "written" has the one row of `WrittenTokens`, once all
    token parts are complete, and "rejected" has a row (`reason`, `where`, `text`) for each document
    that is left out because of its text.

    Args:
        output: The folder of the dataset.
        vocab: A vocab.txt, or a model that has one.
        text: The field that holds the text of a document.
        where: The field that says where a document is from, such as its URL. It is shown in
            messages. None if rows have no such field.
        source: The field that holds the name of a document's source; None if rows have none.
        sources: A mapping for each source, with the fields of `Source` such as `name` and `weight`,
            but without `input`.
        **settings: Other settings of `python -m pipeline build` (docs/commands.md).
    """
    read = beam.Map(row_to_document, text, where, source)
    given: dict[str, Any] = {**settings}
    if sources:
        given["sources"] = [make_source(fields_of_source) for fields_of_source in sources]
    return "Texts" >> read | WriteTokens(output, vocab, **given) | _TokensAsRows()


class _TokensAsRows(beam.PTransform):  # type: ignore[misc]
    """Turns the outputs of `WriteTokens` into rows."""

    def expand(self, written: Mapping[str, beam.PCollection]) -> dict[str, beam.PCollection]:
        """Adds the step that turns rejected documents into rows. `WrittenTokens` is a row already.

        Args:
            written: The outputs "written" and "rejected" of `WriteTokens`.
        """
        to_rows = beam.Map(to_dropped_row).with_output_types(_DROPPED_ROW)
        rejected = written["rejected"] | "RejectedRows" >> to_rows
        return {"written": written["written"], "rejected": rejected}


def to_dropped_row(dropped: DroppedDocument) -> beam.Row:
    """Returns a row about a document that was left out: `reason`, `where` and `text`."""
    return beam.Row(reason=dropped.reason, where=dropped.where, text=dropped.text)


def make_source(given: Mapping[str, Any]) -> Source:
    """Returns a `Source` without input files, because its documents are in a PCollection.

    Args:
        given: Fields of `Source` by their names. `name` must be among them.

    Raises:
        ValueError: `given` has no `name`, or a key that is not a field of `Source`.
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
    """Returns a row's text, or a `Document` if `where` or `source` is given.

    The types of the values are not checked here, because `WriteTokens` checks them.

    Args:
        row: The row.
        text: The field that holds the text.
        where: The field that says where the text is from, which becomes `Document.where`; None for
            none.
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
