"""The transforms for rows, as Beam YAML calls them (configs/beam/provider.yaml).

The values of a row are not converted: what the Python transforms refuse is refused here too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import apache_beam as beam

from pipeline.documents import Document
from pipeline.documents.source import Source
from pipeline.transforms.plain_values import as_mapping, to_plain
from pipeline.transforms.tokens import WriteTokens
from pipeline.transforms.webdataset import WriteToWebDataset


def write_to_webdataset(url: str, key: str = "id", **settings: Any) -> beam.PTransform:
    """Returns WriteToWebDataset for rows.

    Args:
        url: The folder of the shards.
        key: The field that holds the key of a sample. Every other field is an entry, whose
            extension is the field's name.
        settings: Other arguments of WriteToWebDataset.
    """
    return "Samples" >> beam.Map(to_sample, key) | WriteToWebDataset(url, **settings)


def write_tokens(
    output: str,
    vocab: str,
    text: str = "text",
    where: str | None = None,
    source: str | None = None,
    sources: Sequence[Mapping[str, Any]] = (),
    **settings: Any,
) -> beam.PTransform:
    """Returns WriteTokens for rows.

    Args:
        output: The folder of the dataset.
        vocab: A vocab.txt, or a model that has one.
        text: The field that holds the text of a document.
        where: The field that holds a document's place, for messages.
        source: The field that holds the name of a document's source.
        sources: Fields of `pipeline.documents.source.Source` for each source, such as `name`.
        settings: Other settings of a build.
    """
    read = beam.Map(row_to_document, text, where, source)
    named = {"sources": list(map(make_source, sources))} if sources else {}
    return "Texts" >> read | WriteTokens(output, vocab, **named, **settings)


def make_source(given: Mapping[str, Any]) -> Source:
    """Returns a source whose documents are in a PCollection.

    Raises:
        ValueError: It has no name, or a field that sources do not have.
    """
    choices = [field.name for field in fields(Source) if field.name != "input"]
    odd = sorted({*given} - {*choices})
    if odd or "name" not in given:
        found = f"no field {odd[0]!r}" if odd else "to have a name"
        raise ValueError(
            f"sources: found {dict(given)}, expected {found}; a source has {', '.join(choices)}"
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
    found = _take(values, text)
    if not (where or source):
        return found
    place = _take(values, where) if where else ""
    return Document(found, place, source=_take(values, source) if source else "")


def _take(values: Mapping[str, Any], field: str) -> Any:
    if field not in values:
        raise ValueError(f"a row has no field {field!r}; it has {', '.join(map(str, values))}")
    return values[field]
