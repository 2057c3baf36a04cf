"""Names the documents of a run's datasets that are nearly the same as documents to forget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.inspect.show import read_vocabulary
from pipeline.storage.quoting import printable
from pipeline.storage.terminal import say
from pipeline.tokens.named_documents import find_ids
from pipeline.tokens.similar_documents import SimilarDocument, find_similar
from trainer.ask.origins import Origin, Origins
from trainer.stream.order.source import Mixture


@dataclass(frozen=True)
class NearDuplicate:
    """A document of a dataset that is nearly the same as a document to forget.

    Attributes:
        document: The document, the other one, and their similarity.
        origin: Where the document is from; None if that is not known.
    """

    document: SimilarDocument
    origin: Origin | None

    def describe(self) -> str:
        """Returns a line that begins with the document's id, as a list of documents has it."""
        found = self.document
        place = ""
        if self.origin is not None:
            place = f", {self.origin.source} ({self.origin.language}), {self.origin.place}"
        similarity = f"{found.similarity:.2f} like {found.other.hex()[:16]}"
        return printable(f"{found.id.hex()}  {similarity}{place}")


def find_near_duplicates(
    mixture: Mixture,
    documents: Sequence[int],
    threshold: float,
    options: Mapping[str, Any] | None,
) -> dict[str, list[NearDuplicate] | None]:
    """Finds the documents that are nearly the same as documents to forget, in each dataset.

    Documents that the build has dropped, and documents to forget, are not among them. The encoded
    documents of the datasets are read.

    Args:
        mixture: The datasets of a run.
        documents: The documents to forget, each as the first 64 bits of its id.
        threshold: The least similarity, from 0.5 to 1.
        options: Options of the filesystems of the encoded documents.

    Returns:
        The near-duplicates by the name of the dataset, the most similar first; None for a dataset
        whose encoded documents (tokens/) are gone.

    Raises:
        ValueError: A file of the encoded documents is missing or damaged.
    """
    origins = Origins(mixture, options)
    found: dict[str, list[NearDuplicate] | None] = {}
    for number, source in enumerate(mixture):
        tokens = origins.tokens(number)
        if tokens is None:
            found[source.name] = None
            continue
        say(
            f"{source.name}: looking for near-duplicates in {tokens.folder.locate('')}",
            is_aside=True,
        )
        vocabulary = read_vocabulary(source.dataset)
        similar = [
            document
            for document in find_similar(tokens, vocabulary, documents, threshold)
            if find_ids(source.dataset, document.id.hex()) != []
        ]
        places = origins.find(number, [document.id.hex() for document in similar])
        found[source.name] = [
            NearDuplicate(document, places.get(document.id.hex())) for document in similar
        ]
    return found


def describe_near_duplicates(
    found: Mapping[str, Sequence[NearDuplicate] | None], threshold: float
) -> list[str]:
    """Returns lines that tell a person which near-duplicates are not forgotten.

    Args:
        found: The result of `find_near_duplicates`.
        threshold: The least similarity that was looked for.
    """
    lines = []
    for name, duplicates in found.items():
        if duplicates is None:
            lines.append(
                f"near-duplicates in {name}: not known, its encoded documents (tokens/) are gone"
            )
            continue
        advice = ", not forgotten unless listed too" if duplicates else ""
        lines.append(
            f"near-duplicates in {name}: {len(duplicates):,} document(s) at least {threshold:g}"
            f" like one of them{advice}"
        )
        lines += [f"  {duplicate.describe()}" for duplicate in duplicates]
    return lines
