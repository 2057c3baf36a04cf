"""Our transforms over rows, as Beam YAML has them (configs/beam/provider.yaml)."""

from typing import Any

import apache_beam as beam

from pipeline.transforms.tokens import WriteTokens
from pipeline.transforms.webdataset import WriteToWebDataset


def write_to_webdataset(url: str, key: str = "id", **settings: Any) -> beam.PTransform:
    """WriteToWebDataset of rows: `key` names the field of the key, the others are extensions."""
    return "Samples" >> beam.Map(_to_sample, key) | WriteToWebDataset(url, **settings)


def write_tokens(output: str, vocab: str, text: str = "text", **settings: Any) -> beam.PTransform:
    """WriteTokens of rows: `text` names the field of a document's text."""
    return "Texts" >> beam.Map(_to_text, text) | WriteTokens(output, vocab, **settings)


def _to_sample(row: Any, key: str) -> dict[str, Any]:
    fields = dict(row._asdict())
    return {"__key__": fields.pop(key), **fields}


def _to_text(row: Any, field: str) -> str:
    return str(getattr(row, field))
