"""Looks up where the documents of a run's datasets are from: source, place and first words.

The origins are in the encoded documents (tokens/) that a dataset was built from. If these were
deleted, the origins of the dataset's documents are not known any more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pipeline.inspect.show import read_vocabulary
from pipeline.inspect.summary import load_report, tokens_url
from pipeline.tokens.provenance import (
    EncodedDocuments,
    FoundDocument,
    find_documents,
    find_tokens,
    read_opening,
)
from tokenizer.vocab import CONTINUATION
from trainer.stream.order.source import Mixture

_OPENING_TOKENS = 16


@dataclass(frozen=True)
class Origin:
    """Where a document is from.

    Attributes:
        id: The whole id of the document, 32 hex digits.
        source: The name of the document's source.
        language: The language of the source.
        place: The document's place in the input, such as FILE:LINE.
        opening: The document's first 16 tokens as text, with spaces between words.
    """

    id: str
    source: str
    language: str
    place: str
    opening: str


class Origins:
    """Finds where documents of a run's datasets are from, by their ids.

    The encoded documents of a dataset are opened when they are first needed.

    Attributes:
        tokens: Takes the index of a dataset in the mixture, and returns its encoded documents, or
            None if they were deleted.
    """

    def __init__(self, mixture: Mixture, options: Mapping[str, Any] | None) -> None:
        """Remembers the datasets, from which nothing is read yet.

        Args:
            mixture: The datasets of the run.
            options: Options of the filesystem of the datasets' encoded documents.
        """
        self._mixture = mixture
        self._options = options
        self.tokens = lru_cache(maxsize=None)(self._find_tokens)
        self._vocabulary = lru_cache(maxsize=None)(
            lambda dataset: read_vocabulary(mixture[dataset].dataset)
        )

    def find(self, dataset: int, ids: Sequence[str]) -> dict[str, Origin]:
        """Returns where documents of one dataset are from.

        Args:
            dataset: The index of the dataset in the mixture.
            ids: The first 16 to 32 hex digits of the documents' ids.

        Returns:
            A dict from each entry of `ids` to the origin of its document. Documents that are not
            found are left out. The dict is empty if the encoded documents were deleted.

        Raises:
            ValueError: A file of the encoded documents is missing or damaged.
        """
        tokens = self.tokens(dataset)
        if tokens is None or not ids:
            return {}
        copies = find_documents(tokens, ids)
        return {
            document_id: self._describe(dataset, tokens, found[0])
            for document_id, found in copies.items()
            if found
        }

    def _find_tokens(self, dataset: int) -> EncodedDocuments | None:
        """Returns the encoded documents of a dataset, or None if they are gone."""
        opened = self._mixture[dataset].dataset
        return find_tokens(opened, tokens_url(load_report(opened)), self._options)

    def _describe(self, dataset: int, tokens: EncodedDocuments, document: FoundDocument) -> Origin:
        """Returns where a document is from, and its first words."""
        source = self._mixture[dataset].dataset.manifest.sources[document.source]
        pieces = read_opening(tokens, document, self._vocabulary(dataset), _OPENING_TOKENS)
        return Origin(
            id=document.id.hex(),
            source=str(source["name"]),
            language=str(source["language"]),
            place=document.place,
            opening=" ".join(pieces).replace(f" {CONTINUATION}", ""),
        )
