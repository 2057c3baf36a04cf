"""Turns a part of the input into encoded documents, by pure functions on lists of documents.

Beam moves lists of documents between its stages, because moving single documents costs more than
handling them. Each function returns a new list, and adds the numbers of documents that it dropped
or cut to the list's counters.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.documents import Document, DroppedDocument, add_example
from pipeline.documents.parts import Part
from pipeline.text.batches import batch_by_size
from pipeline.text.cleaning import clean_text, document_id
from pipeline.text.filters import DocumentFilter
from pipeline.text.minhash import sign_texts
from pipeline.text.sentences import cut_document, keep_lines, split_sentences
from pipeline.text.task_texts import Overlap, WindowFinder
from pipeline.tokens.token_parts import TokenizedDocument
from tokenizer.encode import Encoder
from tokenizer.vocab import IdArray

DocumentKind = TypeVar("DocumentKind")
SENTENCES_PER_CALL = 1 << 16
"""The encoder gets at least this many sentences at once, if a list has them."""

TASK_TEXT = "task_text"
"""The reason of documents that are dropped because they hold text of task files."""

LISTED = "documents_listed"
"""The counter of documents that hold text of task files, but are kept."""

_MAX_REASONS = 100
_SENTENCES_LOOKED_AT = 64
_UNKNOWN_WORDS = 20


@dataclass(frozen=True)
class SplitDocument:
    """A cleaned document, split into sentences.

    Attributes:
        id: The document's id: blake2b-128 of its cleaned text, 16 bytes.
        cleaned_bytes: The bytes of its cleaned text in UTF-8.
        sentences: Its sentences, none of them empty.
        where: Its place in the input.
        signature: The signature by which near-duplicates are found; empty if they are not looked
            for.
    """

    id: bytes
    cleaned_bytes: int
    sentences: list[str]
    where: str = ""
    signature: bytes = b""


@dataclass(frozen=True)
class DocumentList(Generic[DocumentKind]):
    """Some consecutive documents of one part of the input, with counts and notes about them.

    Each function of this module returns a new list with fewer or other documents, and with more
    counts and notes.

    Attributes:
        part: The part's key.
        number: The number of the list in its part, from 0.
        is_last: Whether it is the last list of its part.
        documents: The documents that have not been dropped.
        counters: Counts by name, such as "documents_read", "dropped_empty" and "documents_cut".
            Once documents are encoded, also "sentences", "tokens" and "unknown_tokens".
        dropped: Some of the dropped documents, as examples.
        source: The number of the source that the part belongs to.
        without_text: For each range of a file that the part reads and that has no text, the URL of
            the file. Only the last list of the part has them.
        overlaps: For each document that holds text of task files, its id in hex, its place in the
            input, and the overlap.
        unknown_words: Some of the words that were encoded with an [UNK], with their counts.
        keeps_dropped: Whether `dropped` has every dropped document with its whole text, and not
            only examples.
    """

    part: str
    number: int
    is_last: bool
    documents: list[DocumentKind]
    counters: Mapping[str, int] = field(default_factory=dict)
    dropped: tuple[DroppedDocument, ...] = ()
    source: int = 0
    without_text: tuple[str, ...] = ()
    overlaps: tuple[tuple[str, str, Overlap], ...] = ()
    unknown_words: Mapping[str, int] = field(default_factory=dict)
    keeps_dropped: bool = False

    if not TYPE_CHECKING:

        def __class_getitem__(cls, _: object) -> type:
            """Returns the class itself, because Beam's type checks know no generic classes."""
            return cls

    def replace(
        self,
        documents: list[Any],
        counters: Mapping[str, int],
        empty: Iterable[tuple[str, str]] = (),
    ) -> "DocumentList[Any]":
        """Returns a copy of this list with other documents, and with numbers added to its counters.

        Args:
            documents: The documents of the new list.
            counters: Numbers to add to the list's counters, by name.
            empty: For each document that was dropped because it was empty, its place in the input
                and its text. Some of them are added to `dropped`.
        """
        summed = dict(Counter(self.counters) + Counter(counters))
        dropped = list(self.dropped)
        for where, text in empty:
            add_example(dropped, "empty", where, text, self.keeps_dropped)
        return dataclasses.replace(
            self, documents=documents, counters=summed, dropped=tuple(dropped)
        )


def group_documents(
    part: Part,
    documents: Iterable[Document],
    malformed: Mapping[str, int],
    max_characters: int,
    examples: Sequence[DroppedDocument] = (),
    without_text: Sequence[str] = (),
) -> Iterator[DocumentList[Document]]:
    """Puts the documents of a part into lists, and yields them lazily.

    A part without documents gives one empty list. The reader of the part fills `malformed`,
    `examples` and `without_text` while `documents` is iterated. So their content is known only at
    the end, and goes into the last list.

    Args:
        part: The part.
        documents: The documents of the part, as they are read.
        malformed: Numbers of documents that the reader skipped, by reason.
        max_characters: A list is complete once its texts have this many characters or more.
        examples: Some of the skipped documents.
        without_text: For each range of a file that the part reads and that has no text, the URL of
            the file.
    """
    key = part.key
    number = 0
    size = 0
    gathered: list[Document] = []
    for document in documents:
        if size >= max_characters:
            counters = {"documents_read": len(gathered)}
            yield DocumentList(key, number, False, gathered, counters, source=part.source)
            number += 1
            size = 0
            gathered = []
        gathered.append(document)
        size += len(document.text)

    counters = {"documents_read": len(gathered) + sum(malformed.values())}
    counters |= {f"dropped_{reason}": skipped for reason, skipped in malformed.items()}
    yield DocumentList(
        key, number, True, gathered, counters, tuple(examples), part.source, tuple(without_text)
    )


def clean_documents(
    documents: DocumentList[Document], *, keeps_words: bool = False
) -> DocumentList[Document]:
    """Cleans the text of every document, and drops documents whose cleaned text is empty.

    Args:
        documents: Documents as they were read.
        keeps_words: Whether words stay as they are (`WordRule.keeps_words`).
    """
    cleaned: list[Document] = []
    empty: list[tuple[str, str]] = []
    for document in documents.documents:
        text = clean_text(document.text, keeps_words=keeps_words)
        if text:
            cleaned.append(Document(text, document.where, document.is_split))
        else:
            empty.append((document.where, document.text))
    return documents.replace(cleaned, {"dropped_empty": len(empty)}, empty)


def filter_documents(
    documents: DocumentList[Document], chosen: DocumentFilter
) -> DocumentList[Document]:
    """Drops documents by the build's filter, and counts them by reason as "dropped_REASON".

    Args:
        documents: Cleaned documents.
        chosen: The filter of the build.

    Raises:
        ValueError: The filter has more than 100 different reasons in one list, or a function of the
            user fails.
    """
    kept: list[Document] = []
    examples = list(documents.dropped)
    counters: Counter[str] = Counter()
    for document in documents.documents:
        reason = chosen.find_reason(document)
        if reason is None:
            kept.append(document)
            continue
        counters[f"dropped_{reason}"] += 1
        add_example(examples, reason, document.where, document.text, documents.keeps_dropped)
        if len(counters) > _MAX_REASONS:
            raise ValueError(
                f"{document.where}: {reason!r} is the filters' reason number {len(counters)}; a"
                f" reason names a kind of document, give at most {_MAX_REASONS}"
            )
    return dataclasses.replace(documents, dropped=tuple(examples)).replace(kept, counters)


def split_documents(
    documents: DocumentList[Document], languages: Sequence[str], *, keeps_words: bool = False
) -> DocumentList[SplitDocument]:
    """Splits cleaned documents into sentences by the rules of their source's language.

    A very long document is cut into several documents, each with its own id.

    Args:
        documents: Cleaned documents.
        languages: The language of each source, by the source's number.
        keeps_words: Whether words stay as they are. Then every line is a sentence.
    """
    language = languages[documents.source]
    split: list[SplitDocument] = []
    empty: list[tuple[str, str]] = []
    counters = {"dropped_empty": 0, "documents_cut": 0}
    for document in documents.documents:
        text = document.text
        if document.is_split or keeps_words:
            sentences = keep_lines(text, keeps_words=keeps_words)
        else:
            sentences = split_sentences(text, language)
        sections = cut_document(sentences)
        if not sections:
            empty.append((document.where, text))
        counters["dropped_empty"] += not sections
        counters["documents_cut"] += len(sections) > 1
        for section in sections:
            # A document that is not cut has the id of its text, not of its sentences.
            section_text = text if len(sections) == 1 else "\n".join(section)
            data = section_text.encode()
            split.append(SplitDocument(document_id(data), len(data), section, document.where))
    return documents.replace(split, counters, empty)


def sign_documents(documents: DocumentList[SplitDocument]) -> DocumentList[SplitDocument]:
    """Returns the list with a signature in each document (`pipeline.text.minhash`).

    Near-duplicates are found by these signatures.
    """
    signatures = sign_texts([" ".join(document.sentences) for document in documents.documents])
    signed = [
        dataclasses.replace(document, signature=signature.tobytes())
        for document, signature in zip(documents.documents, signatures, strict=True)
    ]
    return documents.replace(signed, {})


def encode_documents(
    documents: DocumentList[SplitDocument], encoder: Encoder
) -> DocumentList[TokenizedDocument]:
    """Encodes every sentence, and drops documents without any token.

    Sentences without tokens are left out. Some words that were encoded with an [UNK] are noted in
    `unknown_words`, because the report of the build shows examples of them.

    Args:
        documents: Documents as sentences.
        encoder: The encoder of the build's vocabulary.
    """
    encoded: list[TokenizedDocument] = []
    empty: list[tuple[str, str]] = []
    counters: Counter[str] = Counter()
    unknown_words: Counter[str] = Counter()
    split = documents.documents
    # Many documents are encoded at once, as the encoder looks up each distinct word of a call once.
    for batch in batch_by_size(split, lambda each: len(each.sentences), SENTENCES_PER_CALL):
        sentences = [sentence for document in batch for sentence in document.sentences]
        tokens, lengths = encoder.encode_sentences(sentences)
        cut = _cut_by_document(batch, tokens, lengths)
        for document, document_tokens, sentence_lengths in cut:
            if not len(document_tokens):
                empty.append((document.where, document.sentences[0]))
                continue
            encoded.append(
                TokenizedDocument(
                    id=document.id,
                    cleaned_bytes=document.cleaned_bytes,
                    sentence_lengths=sentence_lengths[sentence_lengths > 0],
                    tokens=document_tokens,
                    source=documents.source,
                    where=document.where,
                    signature=document.signature,
                )
            )

        counters.update(sentences=int(np.count_nonzero(lengths)), tokens=len(tokens))
        num_unknown = int(np.count_nonzero(tokens == encoder.vocab.unk_id))
        counters["unknown_tokens"] += num_unknown
        if num_unknown:
            unknown_words.update(_count_unknown_words(sentences, tokens, lengths, encoder))

    counters["dropped_empty"] = len(split) - len(encoded)
    commonest = dict(unknown_words.most_common(_UNKNOWN_WORDS))
    noted = dataclasses.replace(documents, unknown_words=commonest)
    return noted.replace(encoded, counters, empty)


def _cut_by_document(
    batch: Sequence[SplitDocument], tokens: IdArray, lengths: NDArray[np.uint32]
) -> Iterator[tuple[SplitDocument, IdArray, NDArray[np.uint32]]]:
    """Cuts the tokens of a batch at the ends of its documents.

    Args:
        batch: The documents that were encoded together.
        tokens: The ids of all their sentences, one after the other.
        lengths: The number of tokens of each sentence.

    Yields:
        Each document, its tokens, and the number of tokens of each of its sentences.
    """
    sentence = 0
    start = 0
    for document in batch:
        next_sentence = sentence + len(document.sentences)
        sentence_lengths = lengths[sentence:next_sentence]
        stop = start + int(sentence_lengths.sum())
        yield document, tokens[start:stop], sentence_lengths
        sentence = next_sentence
        start = stop


def _count_unknown_words(
    sentences: Sequence[str], tokens: IdArray, lengths: NDArray[np.uint32], encoder: Encoder
) -> Counter[str]:
    """Counts the words that were encoded with an [UNK], in the first 64 sentences with an [UNK].

    A word that occurs several times in these sentences is counted each time.

    Args:
        sentences: The sentences of a list.
        tokens: The ids of all sentences, one after the other.
        lengths: The number of tokens of each sentence.
        encoder: The encoder that made the tokens.
    """
    numbers = np.repeat(np.arange(len(sentences)), lengths)
    with_unknown = np.unique(numbers[tokens == encoder.vocab.unk_id])[:_SENTENCES_LOOKED_AT]
    words: list[str] = []
    for number in with_unknown.tolist():
        words += encoder.rule.split(sentences[number])
    ids, num_pieces = encoder.encode_sentences(words)
    places = np.repeat(np.arange(len(words)), num_pieces)[ids == encoder.vocab.unk_id]
    return Counter(words[place] for place in np.unique(places).tolist())


def find_task_texts(
    documents: DocumentList[TokenizedDocument], finder: WindowFinder, *, drops: bool
) -> DocumentList[TokenizedDocument]:
    """Finds the documents that hold text of task files, and notes them in `overlaps`.

    Args:
        documents: Encoded documents.
        finder: Finds sequences of words of the task files.
        drops: Whether such documents are dropped, and counted as "dropped_task_text". Otherwise
            they are kept, and counted as "documents_listed".
    """
    overlaps = finder.find([document.tokens for document in documents.documents])
    kept: list[TokenizedDocument] = []
    hits: list[tuple[TokenizedDocument, Overlap]] = []
    for document, overlap in zip(documents.documents, overlaps, strict=True):
        if overlap:
            hits.append((document, overlap))
        else:
            kept.append(document)
    noted = dataclasses.replace(
        documents,
        overlaps=tuple((document.id.hex(), document.where, overlap) for document, overlap in hits),
    )
    if not drops:
        return noted.replace(documents.documents, {LISTED: len(hits)})

    examples = list(documents.dropped)
    counters = Counter({f"dropped_{TASK_TEXT}": len(hits)})
    for document, overlap in hits:
        shared = f"{overlap.place}: {overlap.words}"
        add_example(examples, TASK_TEXT, document.where, shared, documents.keeps_dropped)
        # Encoding has counted the document's sentences and tokens, which are not there any more.
        num_unknown = int(np.count_nonzero(document.tokens == finder.vocab.unk_id))
        counted = {
            "sentences": len(document.sentence_lengths),
            "tokens": len(document.tokens),
            "unknown_tokens": num_unknown,
        }
        counters.subtract(counted)
    return dataclasses.replace(noted, dropped=tuple(examples)).replace(kept, counters)
