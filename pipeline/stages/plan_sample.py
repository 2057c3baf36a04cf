"""A sample of a build's input, read and encoded in this process, for what `build --plan true` says."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.documents import Document
from pipeline.documents.files import FileRange, Meter
from pipeline.documents.formats import is_plain
from pipeline.documents.parts import Part, cut_again
from pipeline.documents.read import read_part
from pipeline.documents.source import Source
from pipeline.documents.sources import count_factors
from pipeline.settings import BuildSettings
from pipeline.stages.build_tokens import open_task_texts
from pipeline.stages.build_vocab import make_vocabulary, read_vocabulary
from pipeline.storage.folder import Folder
from pipeline.text.filters import DocumentFilter
from pipeline.text.task_texts import WindowFinder
from pipeline.tokens.document_lists import (
    DocumentList,
    clean_documents,
    encode_documents,
    filter_documents,
    find_task_texts,
    group_documents,
    split_documents,
)
from pipeline.tokens.token_parts import TokenizedDocument
from tokenizer.encode import Encoder
from tokenizer.vocab import Vocabulary, parse_vocab
from tokenizer.words import count_words

_NUM_PLACES = 8
_PLACE_BYTES = 512 * 2**10
_LOT_CHARACTERS = 128 * 2**10  # what zstd gives at once


@dataclass(frozen=True)
class FileKind:
    """What files have in common whose bytes are worth about the same number of documents."""

    source: int
    format: str
    is_plain: bool


@dataclass
class SampledFiles:
    """All files of a kind, and what was read of them.

    Attributes:
        files: Each as one range, by URL.
        lists: The documents, until they are encoded.
        documents: These encoded, distinct or not, as they came.
        stored_bytes: Bytes of the input that they came from, as stored.
        seconds: CPU time of reading, cleaning, splitting and encoding them.
    """

    files: list[FileRange]
    lists: list[DocumentList[Document]] = field(default_factory=list)
    documents: list[TokenizedDocument] = field(default_factory=list)
    stored_bytes: int = 0
    seconds: float = 0.0

    @property
    def total_bytes(self) -> int:
        """Of the files, as stored."""
        return sum(file.size for file in self.files)

    @property
    def scale(self) -> float:
        """How many times the sample all files are."""
        return self.total_bytes / max(1, self.stored_bytes)


@dataclass(frozen=True)
class Sample:
    """Documents of the input, encoded.

    Attributes:
        kinds: All files.
        num_sources: How many sources the input has.
        vocabulary: The given one, the output's, or one learned from the sample.
        dropped: Documents that are left out, by reason.
    """

    kinds: Mapping[FileKind, SampledFiles]
    num_sources: int
    vocabulary: Vocabulary
    dropped: Mapping[str, int]

    @property
    def documents(self) -> list[TokenizedDocument]:
        """All of them, in the order of the sources."""
        return [document for sampled in self.kinds.values() for document in sampled.documents]

    def scaled(self, measure: Callable[[Sequence[TokenizedDocument]], int]) -> list[int]:
        """What is measured of each source's documents, scaled to the whole source."""
        found = [0.0] * self.num_sources
        for kind, sampled in self.kinds.items():
            found[kind.source] += sampled.scale * measure(sampled.documents)
        return [round(each) for each in found]


def take_sample(settings: BuildSettings, parts: Sequence[Part]) -> Sample:
    """Reads and encodes up to 8 places of half a MB, of several kinds of files at least 2 each, spread evenly by size."""
    corpus = settings.corpus
    kinds = _sort_files(parts)
    places = max(2, _NUM_PLACES // len(kinds))
    chosen, texts = DocumentFilter(settings.filter_rule), open_task_texts(settings)
    for kind, sampled in kinds.items():
        for part in _choose_places(kind, sampled, places):
            first, num_bytes, reading = _read_place(settings, corpus[kind.source], part)
            start = time.process_time()
            sampled.stored_bytes += num_bytes
            sampled.lists.append(filter_documents(clean_documents(first), chosen))
            sampled.seconds += reading + time.process_time() - start
    lists = [each for sampled in kinds.values() for each in sampled.lists]
    encoder = Encoder(_find_vocabulary(settings, lists), settings.lower_case)
    finder = WindowFinder(texts, encoder) if texts else None
    languages, drops = [source.language for source in corpus], settings.task_overlap == "drop"
    dropped: Counter[str] = Counter()
    for sampled in kinds.values():
        start = time.process_time()
        for each in sampled.lists:
            found = encode_documents(split_documents(each, languages), encoder)
            found = find_task_texts(found, finder, drops=drops) if finder else found
            sampled.documents += found.documents
            dropped.update(_count_dropped(found))
        sampled.seconds += time.process_time() - start
    return Sample(kinds, len(corpus), encoder.vocab, dict(sorted(dropped.items())))


def kind_of(file_range: FileRange, source: int) -> FileKind:
    """The kind that the file of a range is of."""
    return FileKind(source, file_range.format, is_plain(file_range.format, file_range.url))


def _sort_files(parts: Sequence[Part]) -> dict[FileKind, SampledFiles]:
    kinds: dict[FileKind, dict[str, FileRange]] = {}
    for part in parts:
        for each in part.ranges:
            whole = replace(each, start=0, end=each.size)
            kinds.setdefault(kind_of(each, part.source), {})[each.url] = whole
    return {kind: SampledFiles(list(files.values())) for kind, files in kinds.items()}


def _count_dropped(found: DocumentList[TokenizedDocument]) -> dict[str, int]:
    return {
        name.removeprefix("dropped_"): count
        for name, count in found.counters.items()
        if "dropped_" in name and count
    }


def _read_place(
    settings: BuildSettings, source: Source, part: Part
) -> tuple[DocumentList[Document], int, float]:
    """The first documents of a part, the stored bytes they came from and the CPU time of reading them.

    A decompressor and a batch of rows give many documents at once. Reading stops where another such
    lot begins: what came before it are whole documents of bytes that are known.
    """
    meter, start = Meter(), time.process_time()
    skipped: dict[str, int] = {}
    documents = read_part(
        replace(part, ranges=tuple(replace(each, meter=meter) for each in part.ranges)),
        text_field=source.text_field,
        on_bad_document=settings.on_bad_document,
        skipped=skipped,
        storage_options=settings.filesystem_options(),
    )
    found: list[Document] = []
    size, num_bytes, seconds, malformed = 0, 0, 0.0, skipped
    for document in documents:
        if size >= _PLACE_BYTES and meter.num_bytes != num_bytes:
            # It begins in the lot before, half its length from the end on average, if it fits into
            # a lot.
            num_bytes = num_bytes * size // (size + min(len(document.text), _LOT_CHARACTERS) // 2)
            break
        found.append(document)
        size += len(document.text)
        num_bytes, seconds, malformed = meter.num_bytes, time.process_time() - start, dict(skipped)
    else:  # ranges of plain files are read to the end of their last document
        are_plain = all(is_plain(each.format, each.url) for each in part.ranges)
        num_bytes = sum(each.num_bytes for each in part.ranges) if are_plain else meter.num_bytes
        seconds, malformed = time.process_time() - start, skipped
    return next(group_documents(part, found, malformed, sys.maxsize)), num_bytes, seconds


def _choose_places(kind: FileKind, sampled: SampledFiles, number: int) -> list[Part]:
    """Parts of files of a kind to read: all of a few bytes."""
    files = [Part((file,), kind.source) for file in sampled.files]
    if sampled.total_bytes <= number * _PLACE_BYTES:
        return cut_again(files, _PLACE_BYTES)
    ends = np.cumsum([file.size for file in sampled.files])
    wanted = (np.arange(number) + 0.5) / number * ends[-1]
    chosen = Counter(np.searchsorted(ends, wanted, side="right").tolist())
    places: list[Part] = []
    for index, count in chosen.items():
        part_bytes = _PLACE_BYTES
        if not kind.is_plain:  # a lot may be long, and lies in one of the ranges
            part_bytes = -(-files[index].text_bytes // count)
        found = cut_again([files[index]], part_bytes)
        picks = {int((pick + 0.5) / count * len(found)) for pick in range(count)}
        places += [found[pick] for pick in sorted(picks)]
    return places


def _find_vocabulary(
    settings: BuildSettings, lists: Sequence[DocumentList[Document]]
) -> Vocabulary:
    if settings.vocab:
        return read_vocabulary(settings, settings.vocab)
    url = f"{settings.output}/vocab.txt"
    folder, name = Folder.of_file(url, settings.filesystem_options())
    if folder.exists(name):
        return parse_vocab(folder.read(name), url)
    factors = count_factors([source.millionths for source in settings.corpus])
    counts: Counter[str] = Counter()
    for each in lists:
        found = count_words((document.text for document in each.documents), settings.lower_case)
        counts.update({word: count * factors[each.source] for word, count in found.items()})
    return make_vocabulary(settings, list(counts), list(counts.values()))
