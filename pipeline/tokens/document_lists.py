"""The stages from a part of the input to encoded documents, as pure functions over lists of them.

Moving single documents between Beam's stages costs more than handling them. Each function returns
a new list and adds what it dropped or cut to the list's counters.
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
TASK_TEXT = "task_text"
LISTED = "documents_listed"
"""The counter of documents that hold text of task files and are not dropped for it."""
_MAX_REASONS = 100
_SENTENCES_LOOKED_AT = 64
_UNKNOWN_WORDS = 20


@dataclass(frozen=True)
class SplitDocument:
    """A cleaned document as sentences, none empty; fields as of `TokenizedDocument`."""

    id: bytes
    cleaned_bytes: int
    sentences: list[str]
    where: str = ""
    signature: bytes = b""


@dataclass(frozen=True)
class DocumentList(Generic[DocumentKind]):
    """Some consecutive documents of one part."""

    part: str  # its key
    number: int  # of the list in its part
    is_last: bool  # list of the part
    documents: list[DocumentKind]
    counters: Mapping[str, int] = field(default_factory=dict)  # read, dropped by reason or cut
    dropped: tuple[DroppedDocument, ...] = ()  # examples
    source: int = 0
    without_text: tuple[str, ...] = ()  # ranges of the part, by URL, that only the last list knows
    overlaps: tuple[tuple[str, str, Overlap], ...] = ()  # id and place of each document with one
    unknown_words: Mapping[str, int] = field(default_factory=dict)  # some of those with an [UNK]
    keeps_dropped: bool = False  # every dropped document, with its whole text

    if not TYPE_CHECKING:  # Beam checks types while it runs, and knows no generic classes

        def __class_getitem__(cls, _: object) -> type:
            return cls

    def replace(
        self,
        documents: list[Any],
        counters: Mapping[str, int],
        empty: Iterable[tuple[str, str]] = (),
    ) -> "DocumentList[Any]":
        """With other documents, counters added, and examples (where, text) of empty documents."""
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
    """Cuts a part's documents into lists of some `max_characters`, at least one.

    The reader fills `malformed`, `examples` and `without_text` while it is read: documents it
    skipped, by reason, some of them, and URLs of ranges without text. The last list has them.
    """
    key, number, size = part.key, 0, 0
    gathered: list[Document] = []
    for document in documents:
        if size >= max_characters:
            counters = {"documents_read": len(gathered)}
            yield DocumentList(key, number, False, gathered, counters, source=part.source)
            number, size, gathered = number + 1, 0, []
        gathered.append(document)
        size += len(document.text)
    counters = {"documents_read": len(gathered) + sum(malformed.values())}
    counters |= {f"dropped_{reason}": number for reason, number in malformed.items()}
    yield DocumentList(
        key, number, True, gathered, counters, tuple(examples), part.source, tuple(without_text)
    )


def clean_documents(
    documents: DocumentList[Document], *, keeps_words: bool = False
) -> DocumentList[Document]:
    """Cleans every text and drops documents without any.

    Args:
        documents: Documents as they were read.
        keeps_words: Whether words stay as they are (`WordRule.keeps_words`).
    """
    read = documents.documents
    cleaned = [
        Document(clean_text(each.text, keeps_words=keeps_words), each.where, each.is_split)
        for each in read
    ]
    kept = [document for document in cleaned if document.text]
    pairs = zip(read, cleaned, strict=True)
    empty = ((each.where, each.text) for each, clean in pairs if not clean.text)
    return documents.replace(kept, {"dropped_empty": len(cleaned) - len(kept)}, empty)


def filter_documents(
    documents: DocumentList[Document], chosen: DocumentFilter
) -> DocumentList[Document]:
    """Leaves out cleaned documents, counted as dropped_REASON; ValueError for a bad filter."""
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
            said = f"{document.where}: {reason!r} is the filters' reason number {len(counters)}"
            raise ValueError(
                f"{said}; a reason names a kind of document, give at most {_MAX_REASONS}"
            )
    return dataclasses.replace(documents, dropped=tuple(examples)).replace(kept, counters)


def split_documents(
    documents: DocumentList[Document], languages: Sequence[str], *, keeps_words: bool = False
) -> DocumentList[SplitDocument]:
    """Splits cleaned documents into sentences by the rules of their source's language.

    A very long document becomes several documents with ids of their own.

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
        pieces = cut_document(sentences)
        if not pieces:
            empty.append((document.where, text))
        counters["dropped_empty"] += not pieces
        counters["documents_cut"] += len(pieces) > 1
        for piece in pieces:
            data = (text if len(pieces) == 1 else "\n".join(piece)).encode()
            split.append(SplitDocument(document_id(data), len(data), piece, document.where))
    return documents.replace(split, counters, empty)


def sign_documents(documents: DocumentList[SplitDocument]) -> DocumentList[SplitDocument]:
    """Gives every document the signature of its sentences."""
    signatures = sign_texts([" ".join(document.sentences) for document in documents.documents])
    pairs = zip(documents.documents, signatures, strict=True)
    signed = [dataclasses.replace(each, signature=own.tobytes()) for each, own in pairs]
    return documents.replace(signed, {})


def encode_documents(
    documents: DocumentList[SplitDocument], encoder: Encoder
) -> DocumentList[TokenizedDocument]:
    """Encodes every sentence; leaves out sentences without tokens, drops documents without any."""
    encoded: list[TokenizedDocument] = []
    empty: list[tuple[str, str]] = []
    counters: Counter[str] = Counter()
    unknown_words: Counter[str] = Counter()
    # One call for many documents: the encoder looks once at each of its distinct words.
    read = documents.documents
    for group in batch_by_size(read, lambda each: len(each.sentences), SENTENCES_PER_CALL):
        sentences = [sentence for each in group for sentence in each.sentences]
        tokens, lengths = encoder.encode_sentences(sentences)
        sentence = start = 0
        for document in group:
            own = lengths[sentence : sentence + len(document.sentences)]
            stop = start + int(own.sum())
            if stop > start:
                kept = own[own > 0]
                found = tokens[start:stop], documents.source, document.where, document.signature
                encoded.append(TokenizedDocument(document.id, document.cleaned_bytes, kept, *found))
            else:
                empty.append((document.where, document.sentences[0]))
            sentence, start = sentence + len(document.sentences), stop
        counters.update(sentences=int(np.count_nonzero(lengths)), tokens=len(tokens))
        num_unknown = int(np.count_nonzero(tokens == encoder.vocab.unk_id))
        counters["unknown_tokens"] += num_unknown
        if num_unknown:
            unknown_words.update(_count_unknown_words(sentences, tokens, lengths, encoder))
    counters["dropped_empty"] = len(read) - len(encoded)
    noted = dataclasses.replace(
        documents, unknown_words=dict(unknown_words.most_common(_UNKNOWN_WORDS))
    )
    return noted.replace(encoded, counters, empty)


def _count_unknown_words(
    sentences: Sequence[str], tokens: IdArray, lengths: NDArray[np.uint32], encoder: Encoder
) -> Counter[str]:
    """Counts the words that hold an [UNK], in the first sentences that have one.

    Args:
        sentences: The sentences of a list.
        tokens: The ids of all sentences, one after the other.
        lengths: The number of tokens of each sentence.
        encoder: The encoder that made the tokens.
    """
    numbers = np.repeat(np.arange(len(sentences)), lengths)
    with_unknown = np.unique(numbers[tokens == encoder.vocab.unk_id])[:_SENTENCES_LOOKED_AT]
    words = [
        word for number in with_unknown.tolist() for word in encoder.rule.split(sentences[number])
    ]
    ids, num_pieces = encoder.encode_sentences(words)
    places = np.repeat(np.arange(len(words)), num_pieces)[ids == encoder.vocab.unk_id]
    return Counter(words[place] for place in np.unique(places).tolist())


def find_task_texts(
    documents: DocumentList[TokenizedDocument], finder: WindowFinder, *, drops: bool
) -> DocumentList[TokenizedDocument]:
    """Notes documents that hold text of task files, and drops them or counts them as listed."""
    found = finder.find([each.tokens for each in documents.documents])
    pairs = list(zip(documents.documents, found, strict=True))
    hits = [(each, overlap) for each, overlap in pairs if overlap]
    overlaps = tuple((each.id.hex(), each.where, overlap) for each, overlap in hits)
    noted = dataclasses.replace(documents, overlaps=overlaps)
    if not drops:
        return noted.replace(documents.documents, {LISTED: len(hits)})
    examples = list(documents.dropped)
    for each, overlap in hits:
        shared = f"{overlap.place}: {overlap.words}"
        add_example(examples, TASK_TEXT, each.where, shared, documents.keeps_dropped)
    counters = Counter({f"dropped_{TASK_TEXT}": len(hits)})
    for each, _ in hits:  # what encoding them has counted is taken off
        unknown = int(np.count_nonzero(each.tokens == finder.vocab.unk_id))
        told = {"sentences": len(each.sentence_lengths), "tokens": len(each.tokens)}
        counters.subtract(told | {"unknown_tokens": unknown})
    kept = [each for each, overlap in pairs if not overlap]
    return dataclasses.replace(noted, dropped=tuple(examples)).replace(kept, counters)
