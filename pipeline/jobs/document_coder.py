"""How lists of documents go between machines: pickled as Beam would, but with their size told, not found by pickling.

Beam measures the elements of every stage, the first ten and every so often one: with lists of megabytes that was 6 % of
a build. The coder is chosen by the element types that Beam infers from the annotations of the stages' functions.
"""

import pickle
from typing import Any

import apache_beam as beam

from pipeline.documents import Document
from pipeline.tokens.document_lists import DocumentList, SplitDocument
from pipeline.tokens.token_parts import TokenizedDocument


class DocumentListCoder(beam.coders.Coder):  # type: ignore[misc]
    """Pickle, as for any type without a coder of its own."""

    def encode(self, value: DocumentList[Any]) -> bytes:
        """The list's bytes."""
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def decode(self, encoded: bytes) -> DocumentList[Any]:
        """The list again."""
        documents: DocumentList[Any] = pickle.loads(encoded)
        return documents

    def estimate_size(self, value: DocumentList[Any]) -> int:
        """Its text or tokens, in characters or bytes."""
        return sum(map(_size_of, value.documents))


def _size_of(document: Document | SplitDocument | TokenizedDocument) -> int:
    if isinstance(document, Document):
        return len(document.text)
    if isinstance(document, SplitDocument):
        return document.cleaned_bytes
    return document.tokens.nbytes + document.sentence_lengths.nbytes


def register() -> None:
    """Makes Beam use the coder for the lists that the stages of pipeline.jobs.tokens_job give."""
    for kind in (Document, SplitDocument, TokenizedDocument):
        beam.coders.registry.register_coder(DocumentList[kind], DocumentListCoder)  # type: ignore[valid-type]
