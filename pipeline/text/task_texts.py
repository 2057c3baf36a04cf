"""Finds documents that hold text of a task file: n consecutive words that both have (a window).

Documents and texts are compared by the ids of their pieces in the vocabulary. A word is a piece
together with the pieces that continue it. Punctuation, symbols and [UNK] are not part of words.
With a cased vocabulary a piece counts as its lower-case one. This follows the GPT-3 paper,
appendix C: "a gram as a lowercase, whitespace delimited word with no punctuation". A text of fewer
than n words is one window if it has at least LEAST_WORDS words, the least n of that appendix.

Shapes: V pieces of the vocabulary, P pieces of words, W words, D documents or texts.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.text.batches import batch_by_size
from pipeline.text.cleaning import clean_text
from pipeline.text.minhash import Hashes, inverse_powers, sum_powers
from tokenizer.encode import Encoder
from tokenizer.vocab import CONTINUATION, SPECIAL_TOKENS, IdArray, Vocabulary

LEAST_WORDS = 8
"""The least number of words of a window."""
TASK_WORDS = 13
"""The number of consecutive words that a document must share with a task file to be left out."""
_MAYBE_BITS = 24  # first bits of a hash, by which a table rules out most words quickly
_BATCH_IDS = 1 << 16  # few enough that the arrays fit into the processor's cache
_NO_WORD = -1
# This old version of Unicode is part of every Python, so that words are the same in all of them.
_UNICODE = unicodedata.ucd_3_2_0

Places = npt.NDArray[np.int64]
"""Indices of words, of pieces or of documents in an array."""
Pieces = npt.NDArray[np.int32]
"""Ids of pieces."""


@dataclass(frozen=True)
class TaskTexts:
    """The cleaned texts of task files, which are looked for in documents.

    Attributes:
        n: The number of words of a window.
        lines: The texts, each without line ends.
        places: The place of each text, such as "dev.tsv:3".
        files: URL of every file, and the number of its texts. The texts are in the order of the
            files.
    """

    n: int
    lines: tuple[str, ...]
    places: tuple[str, ...]
    files: tuple[tuple[str, int], ...] = ()


def prepare_texts(
    texts: Iterable[tuple[str, str]],
    n: int,
    *,
    keeps_words: bool = False,
    files: Sequence[tuple[str, int]] = (),
) -> TaskTexts:
    """Returns cleaned texts, one line each, in which windows of n words are looked for.

    Args:
        texts: The place of each text, such as "dev.tsv:3", and the text.
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
    """Text that a document shares with a task file.

    Attributes:
        place: The place of the text in the task file.
        words: The words of it that the document holds.
    """

    place: str
    words: str


@dataclass(frozen=True)
class _WordTable:
    """The words of some documents or texts, one after the other, numbered from 0.

    Equal windows have equal hashes, which `sums` and `inverses` give at once (see `sum_powers`).

    Attributes:
        pieces: [P] the ids of the pieces of all words.
        bounds: [W + 1] the index in `pieces` at which each word begins, and the end of the last.
        first_words: [D + 1] the number of each document's first word, and the number of all words.
        sums: [W + 1] the sum of powers up to each bound.
        inverses: [W + 1] the inverse of the power at each bound.
    """

    pieces: Pieces
    bounds: Places
    first_words: Places
    sums: Hashes
    inverses: Hashes

    def hash(self, words: Places, num_words: int) -> Hashes:
        """Returns the hashes of the windows of `num_words` words that begin with `words`."""
        return (self.sums[words + num_words] - self.sums[words]) * self.inverses[words]

    def hash_all(self, num_words: int) -> Hashes:
        """Returns the hashes of the windows of `num_words` words that begin with any word.

        Windows that begin in one document and end in another have hashes as well.
        """
        return (self.sums[num_words:] - self.sums[:-num_words]) * self.inverses[:-num_words]

    def slice(self, word: int, num_words: int) -> Pieces:
        """Returns the pieces of the window of `num_words` words that begins with `word`."""
        return self.pieces[self.bounds[word] : self.bounds[word + num_words]]

    def number_of(self, words: Places) -> Places:
        """Returns the number of the document of each word."""
        return np.searchsorted(self.first_words, words, side="right") - 1

    def words_left(self, words: Places) -> Places:
        """Counts the words from each of `words` to the end of its document, inclusive."""
        return self.first_words[self.number_of(words) + 1] - words


class WindowFinder:
    """Finds the first window of each document that is in the task files.

    Attributes:
        vocab: The vocabulary of the documents' ids.
        num_windows: The number of windows that each task file gave, by its URL.
    """

    def __init__(self, texts: TaskTexts, encoder: Encoder) -> None:
        """Finds the windows of the task files, and sorts them by their hashes.

        Args:
            texts: The texts of the task files.
            encoder: Encodes the texts by the vocabulary of the documents.

        Raises:
            ValueError: No text, or no text of some file, has enough words.
        """
        self._texts = texts
        self.vocab = encoder.vocab
        self._fold, self._continues = _describe_pieces(encoder.vocab)
        rng = np.random.default_rng(0)
        self._hashes = rng.integers(2**64, size=len(self.vocab), dtype=np.uint64)
        ids, lengths = encoder.encode_sentences(texts.lines)
        self._task_words = self._split_words(ids, np.cumsum(lengths, dtype=np.int64))
        self._least = min(texts.n, LEAST_WORDS)
        windows = list(self._choose_windows())
        self.num_windows = self._count_windows(words for _, words in windows)
        self._tables = {n: self._sort_windows(words, n) for n, words in windows if len(words)}
        if not self._tables:
            found = f"found {len(texts.lines)} texts, none of {self._least} words or more"
            raise ValueError(f"task_files: {found}, which are looked for")
        self._maybe = np.zeros(1 << _MAYBE_BITS, bool)
        for _, words in self._tables.values():
            self._maybe[_first_bits(self._task_words.hash(words, self._least))] = True

    def _count_windows(self, windows: Iterable[Places]) -> dict[str, int]:
        """Returns the number of windows of every task file, by its URL.

        Args:
            windows: For each size of windows, the words that begin one.

        Raises:
            ValueError: A file has no window.
        """
        counts = np.zeros(len(self._texts.lines) + 1, np.int64)
        for words in windows:
            np.add.at(counts, self._task_words.number_of(words), 1)
        num_windows: dict[str, int] = {}
        first = 0
        for url, num_texts in self._texts.files:
            num_windows[url] = int(counts[first : first + num_texts].sum())
            first += num_texts
            if not num_windows[url]:
                refuse_file_without_windows(url, self._least)
        return num_windows

    def find(self, documents: Sequence[IdArray]) -> list[Overlap | None]:
        """Returns the text that each document shares with a task file, or None.

        It is the first window of the document that is in a task file, with its first place there.

        Args:
            documents: The ids of each document.
        """
        batches = batch_by_size(documents, len, _BATCH_IDS)
        return [overlap for batch in batches for overlap in self._find_in_batch(batch)]

    def _find_in_batch(self, documents: Sequence[IdArray]) -> list[Overlap | None]:
        """Returns what `find` returns, for few documents."""
        overlaps: list[Overlap | None] = [None] * len(documents)
        table = self._split_words(np.concatenate(documents), np.cumsum(list(map(len, documents))))
        # Every window begins with a window of the least size, so most words are ruled out by it.
        words = np.flatnonzero(self._maybe[_first_bits(table.hash_all(self._least))])
        for word, task_word, size in sorted(self._search(table, words)):
            number = int(table.number_of(np.array(word)))
            task_pieces = self._task_words.slice(task_word, size)
            is_equal = np.array_equal(table.slice(word, size), task_pieces)
            if overlaps[number] is None and is_equal:
                overlaps[number] = self._describe(task_word, size)
        return overlaps

    def _split_words(self, ids: IdArray, ends: Places) -> _WordTable:
        """Splits documents into words.

        Args:
            ids: The ids of all documents, one after the other.
            ends: [D] the index in `ids` after each document's last id.
        """
        folded = self._fold[ids]
        in_words = np.flatnonzero(folded != _NO_WORD)
        pieces = folded[in_words]
        first_pieces = np.searchsorted(in_words, np.concatenate([[0], ends]))
        is_bound = np.append(~self._continues[pieces], True)
        is_bound[first_pieces] = True
        bounds = np.flatnonzero(is_bound)
        first_words = np.searchsorted(bounds, first_pieces)
        sums = sum_powers(self._hashes[pieces])
        inverses = inverse_powers(len(pieces) + 1)
        return _WordTable(pieces, bounds, first_words, sums[bounds], inverses[bounds])

    def _choose_windows(self) -> Iterator[tuple[int, Places]]:
        """Yields each size of windows in words, and the task words that begin a window of it."""
        n = self._texts.n
        table = self._task_words
        words = np.arange(len(table.bounds) - 1)
        yield n, words[table.words_left(words) >= n]
        for size in range(self._least, n):
            yield size, table.first_words[:-1][np.diff(table.first_words) == size]

    def _sort_windows(self, words: Places, size: int) -> tuple[Hashes, Places]:
        """Returns the hashes of the windows that begin with `words`, sorted, and those words."""
        hashes = self._task_words.hash(words, size)
        order = np.argsort(hashes, kind="stable")
        return hashes[order], words[order]

    def _search(self, table: _WordTable, words: Places) -> Iterator[tuple[int, int, int]]:
        """Yields windows of documents that have the same hash as a window of the task files.

        Args:
            table: The words of the documents.
            words: The words with which windows may begin.

        Yields:
            The first word of the window in the documents, its first word in the task files, and its
            number of words.
        """
        num_left = table.words_left(words)
        for size, (task_hashes, task_words) in self._tables.items():
            starts = words[num_left >= size]
            hashes = table.hash(starts, size)
            rows = np.minimum(np.searchsorted(task_hashes, hashes), len(task_hashes) - 1)
            is_found = task_hashes[rows] == hashes
            matches = zip(starts[is_found].tolist(), rows[is_found].tolist(), strict=True)
            for word, row in matches:
                yield word, int(task_words[row]), size

    def _describe(self, word: int, size: int) -> Overlap:
        """Returns the place and the words of the window that begins with a word of a task file."""
        number = int(self._task_words.number_of(np.array(word)))
        tokens = map(self.vocab.tokens.__getitem__, self._task_words.slice(word, size))
        words = " ".join(tokens).replace(f" {CONTINUATION}", "")
        return Overlap(self._texts.places[number], words)


def _first_bits(hashes: Hashes) -> Places:
    """Returns the first bits of hashes, the index into the table that rules out most words."""
    return (hashes >> np.uint64(64 - _MAYBE_BITS)).astype(np.int64)


def _describe_pieces(vocab: Vocabulary) -> tuple[Pieces, npt.NDArray[np.bool_]]:
    """Finds the part that each piece of the vocabulary can have in words.

    Returns:
        [V] the id that the piece counts as, its lower-case one, or -1 if it is not part of a word;
        and [V] whether the piece continues a word.
    """
    fold: list[int] = []
    for number, token in enumerate(vocab.tokens):
        is_special = token in SPECIAL_TOKENS
        if not is_special and _holds_letters(token.removeprefix(CONTINUATION)):
            fold.append(vocab.ids.get(token.lower(), number))
        else:
            fold.append(_NO_WORD)
    return np.array(fold, np.int32), vocab.continues


def _holds_letters(text: str) -> bool:
    """Returns whether a piece holds a letter, a digit, a vowel sign or an unknown character."""
    categories = map(_UNICODE.category, text)
    return any(category[0] in "LN" or category in ("Mc", "Cn") for category in categories)
