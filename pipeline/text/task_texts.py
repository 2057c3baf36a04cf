"""Whether a document holds text of a task file: windows of n words that both have.

Documents and texts are compared by the ids that the vocabulary gives them. A word is a piece and
those that continue it; punctuation, symbols and [UNK] stand between words, and with a cased
vocabulary a piece counts as its lower-case one (GPT-3 paper, appendix C: "a gram as a lowercase,
whitespace delimited word with no punctuation"). A text of fewer than n words counts as one window
where it has at least LEAST_WORDS, the least n of that appendix.

V pieces of the vocabulary, P pieces of words, W words, D documents or texts.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.text.batches import batch_by_size
from pipeline.text.cleaning import clean_text
from pipeline.text.minhash import Words, inverse_powers, sum_powers
from tokenizer.encode import Encoder
from tokenizer.vocab import CONTINUATION, SPECIAL_TOKENS, IdArray, Vocabulary

LEAST_WORDS = 8
TASK_WORDS = 13
"""How many words in a row a document shares with a task file to be one of it."""
_MAYBE_BITS = 24  # of the table that most documents' windows are not in
_BATCH_IDS = 1 << 16  # arrays that the processor's cache holds
_NO_WORD = -1
# Part of every Python, so that no version of it decides what a word is.
_UNICODE = unicodedata.ucd_3_2_0

Places = npt.NDArray[np.int64]
Pieces = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TaskTexts:
    """Words of a window, and the cleaned texts of task files and their places."""

    n: int
    lines: tuple[str, ...]
    places: tuple[str, ...]
    files: tuple[tuple[str, int], ...] = ()
    """Every file and how many of the texts, in their order, are in it."""


def prepare_texts(
    texts: Iterable[tuple[str, str]],
    n: int,
    *,
    keeps_words: bool = False,
    files: Sequence[tuple[str, int]] = (),
) -> TaskTexts:
    """Returns cleaned texts, one line each, in which windows of n words are looked for.

    Args:
        texts: The place of each text, such as "dev.tsv, line 3", and the text.
        n: The number of words of a window.
        keeps_words: Whether words stay as they are (`WordRule.keeps_words`).
        files: Every file with the number of its texts. The texts are in the order of the files.
    """
    places: list[str] = []
    lines: list[str] = []
    for place, text in texts:
        places.append(place)
        lines.append(clean_text(text, keeps_words=keeps_words).replace("\n", " "))
    return TaskTexts(n, tuple(lines), tuple(places), tuple(files))


def refuse_file_without_windows(url: str, least: int = LEAST_WORDS) -> None:
    """Raises the error about a task file whose texts are all too short to be looked for.

    Args:
        url: The file.
        least: The least number of words of a text.

    Raises:
        ValueError: Always.
    """
    found = f"found no text of {least} words or more, so nothing of it would be looked for"
    texts = "a text is a line, a cell or a string of JSON"
    columns = """`awk 'NF {printf "%s ", $1; next} {print ""}' FILE`"""
    lists = """`jq -r '.tokens | join(" ")' FILE`"""
    cure = f"make lines of words in columns by {columns}, of lists of words by {lists}"
    raise ValueError(f"{url}: {found}; {texts}: {cure}, or leave the file out of --task_files")


@dataclass(frozen=True)
class Overlap:
    """A text of a task file, by its place, and the words of it that a document holds."""

    place: str
    words: str


@dataclass(frozen=True)
class _Runs:
    """Documents as words, end to end. Equal runs of words have equal hashes (`sum_powers`)."""

    pieces: Pieces  # [P]
    bounds: Places  # [W + 1] at which piece each word begins, and the last ends
    first_words: Places  # [D + 1] number of each document's first word
    sums: Words  # [W + 1]
    inverses: Words  # [W + 1]

    def hash(self, words: Places, num_words: int) -> Words:
        """Of the runs of so many words that begin with some words."""
        return (self.sums[words + num_words] - self.sums[words]) * self.inverses[words]

    def hash_all(self, num_words: int) -> Words:
        """Of all runs of so many words, over the bounds of documents too."""
        return (self.sums[num_words:] - self.sums[:-num_words]) * self.inverses[:-num_words]

    def slice(self, word: int, num_words: int) -> Pieces:
        """The pieces of one run."""
        return self.pieces[self.bounds[word] : self.bounds[word + num_words]]

    def number_of(self, words: Places) -> Places:
        """Numbers of the documents that words are in."""
        return np.searchsorted(self.first_words, words, side="right") - 1

    def words_left(self, words: Places) -> Places:
        """How many there are from each of some words to the end of its document, both counted."""
        return self.first_words[self.number_of(words) + 1] - words


class WindowFinder:
    """Finds the first window of each document that is in the task files."""

    def __init__(self, texts: TaskTexts, encoder: Encoder) -> None:
        """Sorts the windows by their hashes; raises ValueError where no text has enough words."""
        self._texts = texts
        self.vocab = encoder.vocab
        self._fold, self._continues = _describe_pieces(encoder.vocab)
        rng = np.random.default_rng(0)
        self._hashes = rng.integers(2**64, size=len(self.vocab), dtype=np.uint64)
        ids, lengths = encoder.encode_sentences(texts.lines)
        self._runs = self._split_words(ids, np.cumsum(lengths, dtype=np.int64))
        self._least = min(texts.n, LEAST_WORDS)
        windows = list(self._choose_windows())
        self.num_windows = self._count_windows(words for _, words in windows)
        """How many windows each file of the texts gave, by its URL."""
        self._tables = {n: self._sort_windows(words, n) for n, words in windows if len(words)}
        if not self._tables:
            found = f"found {len(texts.lines)} texts, none of {self._least} words or more"
            raise ValueError(f"task_files: {found}, which are looked for")
        self._maybe = np.zeros(1 << _MAYBE_BITS, bool)
        for _, words in self._tables.values():
            self._maybe[_begin(self._runs.hash(words, self._least))] = True

    def _count_windows(self, windows: Iterable[Places]) -> dict[str, int]:
        """Counts the windows of every file.

        Args:
            windows: The words of each window.

        Raises:
            ValueError: A file has no window.
        """
        counts = np.zeros(len(self._texts.lines) + 1, np.int64)
        for words in windows:
            np.add.at(counts, self._runs.number_of(words), 1)
        num_windows: dict[str, int] = {}
        first = 0
        for url, num_texts in self._texts.files:
            num_windows[url] = int(counts[first : first + num_texts].sum())
            first += num_texts
            if not num_windows[url]:
                refuse_file_without_windows(url, self._least)
        return num_windows

    def find(self, documents: Sequence[IdArray]) -> list[Overlap | None]:
        """For each document its first window that a task file has, and its first place there."""
        batches = batch_by_size(documents, len, _BATCH_IDS)
        return [found for batch in batches for found in self._find_in_batch(batch)]

    def _find_in_batch(self, documents: Sequence[IdArray]) -> list[Overlap | None]:
        found: list[Overlap | None] = [None] * len(documents)
        runs = self._split_words(np.concatenate(documents), np.cumsum(list(map(len, documents))))
        words = np.flatnonzero(self._maybe[_begin(runs.hash_all(self._least))])
        for word, task_word, size in sorted(self._search(runs, words)):
            number = int(runs.number_of(np.array(word)))
            same = np.array_equal(runs.slice(word, size), self._runs.slice(task_word, size))
            if found[number] is None and same:
                found[number] = self._describe(task_word, size)
        return found

    def _split_words(self, ids: IdArray, ends: Places) -> _Runs:
        """The words of documents that end before some of the ids."""
        folded = self._fold[ids]
        kept = np.flatnonzero(folded != _NO_WORD)
        pieces = folded[kept]
        documents = np.searchsorted(kept, np.concatenate([[0], ends]))
        begins = np.append(~self._continues[pieces], True)
        begins[documents] = True
        bounds = np.flatnonzero(begins)
        sums, inverses = sum_powers(self._hashes[pieces]), inverse_powers(len(pieces) + 1)
        first_words = np.searchsorted(bounds, documents)
        return _Runs(pieces, bounds, first_words, sums[bounds], inverses[bounds])

    def _choose_windows(self) -> Iterator[tuple[int, Places]]:
        """Numbers of words of windows, and the words that those of each number begin with."""
        n, runs = self._texts.n, self._runs
        words = np.arange(len(runs.bounds) - 1)
        yield n, words[runs.words_left(words) >= n]
        for size in range(self._least, n):
            yield size, runs.first_words[:-1][np.diff(runs.first_words) == size]

    def _sort_windows(self, words: Places, size: int) -> tuple[Words, Places]:
        hashes = self._runs.hash(words, size)
        order = np.argsort(hashes, kind="stable")
        return hashes[order], words[order]

    def _search(self, runs: _Runs, words: Places) -> Iterator[tuple[int, int, int]]:
        """Words of documents, words of task files and sizes of windows whose hashes are equal."""
        left = runs.words_left(words)
        for size, (hashes, own) in self._tables.items():
            whole = words[left >= size]
            wanted = runs.hash(whole, size)
            rows = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
            is_found = hashes[rows] == wanted
            for word, row in zip(whole[is_found].tolist(), rows[is_found].tolist(), strict=True):
                yield word, int(own[row]), size

    def _describe(self, word: int, size: int) -> Overlap:
        number = int(self._runs.number_of(np.array(word)))
        tokens = map(self.vocab.tokens.__getitem__, self._runs.slice(word, size))
        words = " ".join(tokens).replace(f" {CONTINUATION}", "")
        return Overlap(self._texts.places[number], words)


def _begin(hashes: Words) -> Places:
    return (hashes >> np.uint64(64 - _MAYBE_BITS)).astype(np.int64)


def _describe_pieces(vocab: Vocabulary) -> tuple[Pieces, npt.NDArray[np.bool_]]:
    """[V] the id that each piece counts as, or -1 for none; [V] whether it continues a word."""
    fold = [
        vocab.ids.get(token.lower(), number)
        if token not in SPECIAL_TOKENS and _holds_letters(token.removeprefix(CONTINUATION))
        else _NO_WORD
        for number, token in enumerate(vocab.tokens)
    ]
    return np.array(fold, np.int32), vocab.continues


def _holds_letters(text: str) -> bool:
    """Whether letters, digits or vowel signs are in a piece."""
    kinds = map(_UNICODE.category, text)
    return any(kind[0] in "LN" or kind in ("Mc", "Cn") for kind in kinds)
