"""Says where documents are from, as long as their datasets' encoded documents still exist."""

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
        id: The whole id, 32 hex digits.
        source: The name of its source.
        language: The language of the source.
        place: Its place in the input, such as FILE:LINE.
        opening: Its first words, as the vocabulary has them.
    """

    id: str
    source: str
    language: str
    place: str
    opening: str


class Origins:
    """Looks up documents of the datasets of a run."""

    def __init__(self, mixture: Mixture, options: Mapping[str, Any] | None) -> None:
        """Reads nothing yet.

        Args:
            mixture: The datasets.
            options: Options of the filesystem of their encoded documents.
        """
        self._mixture = mixture
        self._options = options
        self.tokens = lru_cache(maxsize=None)(self._find_tokens)
        self._vocabulary = lru_cache(maxsize=None)(
            lambda dataset: read_vocabulary(mixture[dataset].dataset)
        )

    def find(self, dataset: int, ids: Sequence[str]) -> dict[str, Origin]:
        """Returns the origins of documents by the given ids; documents without one are left out.

        Args:
            dataset: The index of the dataset in the mixture.
            ids: The first 16 to 32 hex digits of the documents' ids.

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
