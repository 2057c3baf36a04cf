"""A sample of a build's input, read and encoded in this process, for what `build --plan true` says."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.documents import Document
from pipeline.documents.files import Meter
from pipeline.documents.formats import is_plain
from pipeline.documents.parts import InputFile, Part, plan_parts
from pipeline.documents.read import read_part
from pipeline.documents.source import Source
from pipeline.documents.sources import count_factors
from pipeline.settings import BuildSettings
from pipeline.stages.build_tokens import open_task_texts
from pipeline.stages.build_vocab import make_vocabulary
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
class Sample:
    """Documents of the input, encoded.

    Attributes:
        documents: Distinct or not, as they came.
        stored_bytes: Bytes of the input that they came from, as stored, by the source's number.
        seconds: CPU time of reading, cleaning, splitting and encoding them, by the source's number.
        vocabulary: The given one, the output's, or one learned from the sample.
        dropped: Documents that are left out, by reason.
    """

    documents: list[TokenizedDocument]
    stored_bytes: list[int]
    seconds: list[float]
    vocabulary: Vocabulary
    dropped: Mapping[str, int]

    def scaled(
        self, scales: Sequence[float], measure: Callable[[Sequence[TokenizedDocument]], int]
    ) -> list[int]:
        """What is measured of each source's documents, scaled to the whole source."""
        return [
            round(
                scale
                * measure([document for document in self.documents if document.source == number])
            )
            for number, scale in enumerate(scales)
        ]


def take_sample(
    settings: BuildSettings, files: Sequence[InputFile], parts: Sequence[Part]
) -> Sample:
    """Reads and encodes up to 8 places of half a MB, of several sources at least 2 each, spread evenly by size."""
    corpus = settings.corpus
    places = max(2, _NUM_PLACES // len(corpus))
    stored_bytes, seconds = [0] * len(corpus), [0.0] * len(corpus)
    lists: list[DocumentList[Document]] = []
    chosen, texts = DocumentFilter(settings.filter_rule), open_task_texts(settings)
    formats = {each.url: each.format for part in parts for each in part.ranges}
    for number, source in enumerate(corpus):
        own = [file for file in files if file.source == number]
        for part in _choose_places(settings, source, own, formats, places):
            first, num_bytes, reading = _read_place(settings, source, part)
            start = time.process_time()
            stored_bytes[number] += num_bytes
            lists.append(filter_documents(clean_documents(first), chosen))
            seconds[number] += reading + time.process_time() - start
    encoder = Encoder(_find_vocabulary(settings, lists), settings.lower_case)
    finder = WindowFinder(texts, encoder) if texts else None
    languages, drops = [source.language for source in corpus], settings.task_overlap == "drop"
    encoded: list[DocumentList[TokenizedDocument]] = []
    for each in lists:
        start = time.process_time()
        found = encode_documents(split_documents(each, languages), encoder)
        encoded.append(find_task_texts(found, finder, drops=drops) if finder else found)
        seconds[each.source] += time.process_time() - start
    documents = [document for each in encoded for document in each.documents]
    return Sample(documents, stored_bytes, seconds, encoder.vocab, _count_dropped(encoded))


def _count_dropped(lists: Sequence[DocumentList[TokenizedDocument]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in lists:
        total.update(
            {
                name.removeprefix("dropped_"): n
                for name, n in each.counters.items()
                if "dropped_" in name and n
            }
        )
    return dict(sorted(total.items()))


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


def _choose_places(
    settings: BuildSettings,
    source: Source,
    files: Sequence[InputFile],
    formats: Mapping[str, str],
    number: int,
) -> list[Part]:
    """Parts of a source to read: all of a small one, whose files may be of several formats."""
    ends = np.cumsum([file.size for file in files])
    if ends[-1] <= number * _PLACE_BYTES:
        options = settings.filesystem_options()
        return plan_parts(files, source.format, _PLACE_BYTES, options, source.wrapping)
    wanted = (np.arange(number) + 0.5) / number * ends[-1]
    chosen = Counter(np.searchsorted(ends, wanted, side="right").tolist())
    places: list[Part] = []
    for index, count in chosen.items():
        options = settings.filesystem_options()
        file_format = formats[files[index].url]
        part_bytes = _PLACE_BYTES
        if not is_plain(
            file_format, files[index].url
        ):  # a lot may be long, and lies in one of the ranges
            (whole,) = plan_parts(
                [files[index]], file_format, sys.maxsize, options, source.wrapping
            )
            part_bytes = -(-whole.text_bytes // count)
        found = plan_parts([files[index]], file_format, part_bytes, options, source.wrapping)
        picks = {int((pick + 0.5) / count * len(found)) for pick in range(count)}
        places += [found[pick] for pick in sorted(picks)]
    return places


def _find_vocabulary(
    settings: BuildSettings, lists: Sequence[DocumentList[Document]]
) -> Vocabulary:
    for url in filter(None, (settings.vocab, f"{settings.output}/vocab.txt")):
        folder, name = Folder.of_file(url, settings.filesystem_options())
        if folder.exists(name):
            return parse_vocab(folder.read(name), url)
    factors = count_factors([source.millionths for source in settings.corpus])
    counts: Counter[str] = Counter()
    for each in lists:
        found = count_words((document.text for document in each.documents), settings.lower_case)
        counts.update({word: count * factors[each.source] for word, count in found.items()})
    return make_vocabulary(settings, list(counts), list(counts.values()))
