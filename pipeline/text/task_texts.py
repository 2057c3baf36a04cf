"""Finds documents that hold text of a task file.

A task file is a test set that the user names by --task_files (docs/input.md). It consists of texts.
A window is a sequence of n consecutive words of such a text. A text of fewer than n words is a
single window if it has at least LEAST_WORDS words. A document holds text of a task file if one of
the windows is in the document.

Documents are encoded when they are searched, so words are compared by the ids of their pieces (the
tokens of the vocabulary). A word is a piece together with the pieces that continue it. Punctuation,
symbols and [UNK] are not part of words. In a cased vocabulary, a piece counts as the piece in lower
case. This follows the GPT-3 paper, appendix C: "a gram as a lowercase, whitespace delimited word
with no punctuation". LEAST_WORDS is the least n of that appendix.

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
        lines: The texts of all files, file after file. Each is one line.
        places: For each text the file and the line that it is from, such as "dev.tsv:3".
        files: For each file its URL and the number of its texts.
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
    """Cleans the texts of task files as documents are cleaned, and puts each on one line.

    Args:
        texts: For each text its place, such as "dev.tsv:3", and the text.
        n: The number of words of a window.
        keeps_words: Whether words stay as they are (`WordRule.keeps_words`).
        files: For each file its URL and the number of its texts. `texts` is in the same order.
    """
    places: list[str] = []
    lines: list[str] = []
    for place, text in texts:
        places.append(place)
        lines.append(clean_text(text, keeps_words=keeps_words).replace("\n", " "))
    return TaskTexts(n, tuple(lines), tuple(places), tuple(files))


def refuse_file_without_windows(url: str, least: int = LEAST_WORDS) -> None:
    """Raises the error about a task file of which no text has enough words to be looked for.

    Args:
        url: The file.
        least: How many words a text must have.

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
        place: The task file and the line that the text is from, such as "dev.tsv:3".
        words: The words of the window that both hold, in the spelling of the vocabulary's pieces.
    """

    place: str
    words: str


@dataclass(frozen=True)
class _WordTable:
    """The words of D documents, or of D texts of task files, numbered from 0 through all of them.

    The methods take such numbers of words. Two windows with the same pieces have the same hash,
    which `sums` and `inverses` give without a look at the pieces (see `sum_powers`).

    Attributes:
        pieces: [P] the ids of the pieces of all words.
        bounds: [W + 1] for each word the index in `pieces` at which it begins; at the end P.
        first_words: [D + 1] for each document the number of its first word; at the end W.
        sums: [W + 1] the results of `sum_powers` at the bounds.
        inverses: [W + 1] the results of `inverse_powers` at the bounds.
    """

    pieces: Pieces
    bounds: Places
    first_words: Places
    sums: Hashes
    inverses: Hashes

    def hash(self, words: Places, num_words: int) -> Hashes:
        """Returns for each of `words` the hash of the `num_words` words that begin with it."""
        return (self.sums[words + num_words] - self.sums[words]) * self.inverses[words]

    def hash_all(self, num_words: int) -> Hashes:
        """Returns the hashes of all sequences of `num_words` consecutive words, by the first word.

        Sequences that begin in one document and end in another are not left out.
        """
        return (self.sums[num_words:] - self.sums[:-num_words]) * self.inverses[:-num_words]

    def slice(self, word: int, num_words: int) -> Pieces:
        """Returns the pieces of the `num_words` words that begin with the word number `word`."""
        return self.pieces[self.bounds[word] : self.bounds[word + num_words]]

    def number_of(self, words: Places) -> Places:
        """Returns for each of `words` the number of the document that it is in."""
        return np.searchsorted(self.first_words, words, side="right") - 1

    def words_left(self, words: Places) -> Places:
        """Returns the number of words from each of `words`, inclusive, to its document's end."""
        return self.first_words[self.number_of(words) + 1] - words


class WindowFinder:
    """Finds text of task files in documents.

    Attributes:
        vocab: The vocabulary that documents are encoded by.
        num_windows: The number of windows of each task file, by the file's URL.
    """

    def __init__(self, texts: TaskTexts, encoder: Encoder) -> None:
        """Encodes the task texts, and sorts their windows by hash.

        Args:
            texts: The texts of the task files.
            encoder: The encoder of the documents.

        Raises:
            ValueError: A file has no text with enough words for a window, or there is no window at
                all.
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
        """Returns the number of windows of every task file, by the file's URL.

        Args:
            windows: For each number of words that windows have, the numbers of the task words with
                which such windows begin.

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
        """Looks for text of the task files in documents.

        Args:
            documents: For each document the ids of all its sentences.

        Returns:
            For each document, the first window in it that a task file has, with the place of the
            first task text that holds the window. None if the document holds no window.
        """
        batches = batch_by_size(documents, len, _BATCH_IDS)
        return [overlap for batch in batches for overlap in self._find_in_batch(batch)]

    def _find_in_batch(self, documents: Sequence[IdArray]) -> list[Overlap | None]:
        """Does what `find` does, for documents that are few enough to be searched at once."""
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
        """Splits encoded documents into words.

        Args:
            ids: The ids of all documents, one after the other.
            ends: [D] for each document the index in `ids` after its last id.
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
        """Chooses the windows of the task texts.

        Yields:
            A number of words, and the numbers of the task words with which windows of so many words
            begin. First these are the windows of n words, of texts that have at least n words. Then
            they are whole texts of fewer words, for each number of words from `_least` on.
        """
        n = self._texts.n
        table = self._task_words
        words = np.arange(len(table.bounds) - 1)
        yield n, words[table.words_left(words) >= n]
        for size in range(self._least, n):
            yield size, table.first_words[:-1][np.diff(table.first_words) == size]

    def _sort_windows(self, words: Places, size: int) -> tuple[Hashes, Places]:
        """Sorts windows by hash.

        Args:
            words: The numbers of the task words with which the windows begin.
            size: The number of words of the windows.

        Returns:
            The hashes of the windows, ascending, and `words` in the same order.
        """
        hashes = self._task_words.hash(words, size)
        order = np.argsort(hashes, kind="stable")
        return hashes[order], words[order]

    def _search(self, table: _WordTable, words: Places) -> Iterator[tuple[int, int, int]]:
        """Yields windows of documents that have the same hash as a window of the task files.

        Args:
            table: The words of the documents.
            words: The numbers of those words in `table` that may begin a window.

        Yields:
            The number of the window's first word in `table`, the number of its first word in the
            task texts, and how many words it has. The pieces still have to be compared, because
            different windows may have the same hash.
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
        """Returns the place and the words of a window of the task texts.

        Args:
            word: The number of the window's first word in the task texts.
            size: The number of words of the window.
        """
        number = int(self._task_words.number_of(np.array(word)))
        tokens = map(self.vocab.tokens.__getitem__, self._task_words.slice(word, size))
        words = " ".join(tokens).replace(f" {CONTINUATION}", "")
        return Overlap(self._texts.places[number], words)


def _first_bits(hashes: Hashes) -> Places:
    """Returns the first 24 bits of hashes, by which `WindowFinder` rules out most words quickly."""
    return (hashes >> np.uint64(64 - _MAYBE_BITS)).astype(np.int64)


def _describe_pieces(vocab: Vocabulary) -> tuple[Pieces, npt.NDArray[np.bool_]]:
    """Says of each piece of the vocabulary how it takes part in words.

    Returns:
        For each piece the id that it is compared by: that of the piece in lower case, or -1 if the
        piece is not part of words, such as punctuation: [V] int32. And whether the piece continues
        a word: [V] bool.
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
    """Returns whether a piece holds a letter, a digit, a vowel sign or an unknown character.

    A character is unknown if Unicode 3.2 does not have it.
    """
    categories = map(_UNICODE.category, text)
    return any(category[0] in "LN" or category in ("Mc", "Cn") for category in categories)
