"""A sample of a build's input, read and encoded in this process, for what `build --plan true` says."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.documents import Document
from pipeline.documents.parts import InputFile, Part, plan_parts
from pipeline.documents.read import read_part
from pipeline.documents.sources import Source, count_factors
from pipeline.settings import BuildSettings
from pipeline.storage.folder import Folder
from pipeline.text.filters import DocumentFilter
from pipeline.tokens.document_lists import (
    DocumentList,
    clean_documents,
    encode_documents,
    filter_documents,
    group_documents,
    split_documents,
)
from pipeline.tokens.token_parts import TokenizedDocument
from tokenizer.encode import Encoder
from tokenizer.learn import learn_vocabulary
from tokenizer.vocab import Vocabulary, parse_vocab
from tokenizer.words import count_words

_NUM_PLACES = 8
_PLACE_BYTES = 512 * 2**10


@dataclass(frozen=True)
class Sample:
    """Documents of the input, encoded.

    Attributes:
        documents: Distinct or not, as they came.
        text_bytes: Input they came from, by the source's number, headers and JSON included, compressed input as if it
            were not.
        seconds: Reading, cleaning, splitting and encoding, in one process, by the source's number.
        vocabulary: The given one, the output's, or one learned from the sample.
        dropped: Documents that are left out, by reason.
    """

    documents: list[TokenizedDocument]
    text_bytes: list[int]
    seconds: list[float]
    vocabulary: Vocabulary
    dropped: Mapping[str, int]

    def scaled(self, scales: Sequence[float], measure: Callable[[Sequence[TokenizedDocument]], int]) -> list[int]:
        """What is measured of each source's documents, scaled to the whole source."""
        return [
            round(scale * measure([document for document in self.documents if document.source == number]))
            for number, scale in enumerate(scales)
        ]


def take_sample(settings: BuildSettings, files: Sequence[InputFile], parts: Sequence[Part]) -> Sample:
    """Reads and encodes up to 8 places of half a MB, of several sources at least 2 each, spread evenly by size."""
    corpus = settings.corpus
    places = max(2, _NUM_PLACES // len(corpus))
    text_bytes, seconds = [0] * len(corpus), [0.0] * len(corpus)
    lists: list[DocumentList[Document]] = []
    chosen = DocumentFilter(settings.filter_rule)
    formats = {each.url: each.format for part in parts for each in part.ranges}
    for number, source in enumerate(corpus):
        start = time.process_time()
        own = [file for file in files if file.source == number]
        for part in _choose_places(settings, source, own, formats, places):
            first, num_bytes = _read_place(settings, source, part)
            text_bytes[number] += num_bytes
            lists.append(filter_documents(clean_documents(first), chosen))
        seconds[number] = time.process_time() - start
    encoder = Encoder(_find_vocabulary(settings, lists), settings.lower_case)
    documents: list[TokenizedDocument] = []
    for each in lists:
        start = time.process_time()
        documents += encode_documents(split_documents(each, [source.language for source in corpus]), encoder).documents
        seconds[each.source] += time.process_time() - start
    return Sample(documents, text_bytes, seconds, encoder.vocab, _count_dropped(lists))


def _count_dropped(lists: Sequence[DocumentList[Document]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in lists:
        total.update(
            {name.removeprefix("dropped_"): n for name, n in each.counters.items() if "dropped_" in name and n}
        )
    return dict(sorted(total.items()))


def _read_place(settings: BuildSettings, source: Source, part: Part) -> tuple[DocumentList[Document], int]:
    """The first documents of a part, and the bytes of input they came from."""
    documents = read_part(
        part,
        text_field=source.text_field,
        on_bad_document=settings.on_bad_document,
        skipped={},
        storage_options=settings.filesystem_options(),
    )
    first = next(group_documents(part, documents, {}, _PLACE_BYTES))
    read = sum(len(document.text.encode()) for document in first.documents)
    return first, part.text_bytes if first.is_last else read


def _choose_places(
    settings: BuildSettings, source: Source, files: Sequence[InputFile], formats: Mapping[str, str], number: int
) -> list[Part]:
    ends = np.cumsum([file.size for file in files])
    wanted = (np.arange(number) + 0.5) / number * ends[-1]
    chosen = Counter(np.searchsorted(ends, wanted, side="right").tolist())
    places: list[Part] = []
    for index, count in chosen.items():
        options = settings.filesystem_options()
        file_format = formats[files[index].url]
        found = plan_parts([files[index]], file_format, _PLACE_BYTES, options, source.wrapping)
        picks = {int((pick + 0.5) / count * len(found)) for pick in range(count)}
        places += [found[pick] for pick in sorted(picks)]
    return places


def _find_vocabulary(settings: BuildSettings, lists: Sequence[DocumentList[Document]]) -> Vocabulary:
    for url in filter(None, (settings.vocab, f"{settings.output}/vocab.txt")):
        folder, name = Folder.of_file(url, settings.filesystem_options())
        if folder.exists(name):
            return parse_vocab(folder.read(name), url)
    factors = count_factors([source.millionths for source in settings.corpus])
    counts: Counter[str] = Counter()
    for each in lists:
        found = count_words((document.text for document in each.documents), settings.lower_case)
        counts.update({word: count * factors[each.source] for word, count in found.items()})
    words, numbers = list(counts), list(counts.values())
    return learn_vocabulary(words, numbers, settings.vocab_size, settings.num_unused, settings.alphabet_size)
