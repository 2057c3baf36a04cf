"""Reads and writes CoNLL columns: sentences of words and tags (docs/finetuning.md).

Columns are separated by tabs, or by spaces if a file has no tab. Every other character is part of a
word, even a no-break space (U+00A0) or an ideographic one (U+3000).
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pipeline.storage.quoting import quote
from trainer.conll.tags import OUTSIDE, Scheme, find_entities, find_scheme, is_tag, write_tags

DOCUMENT_START = "-DOCSTART-"
_BLANK = " \t"
"""The characters that separate columns. A line of these characters alone ends a sentence."""
_BLANKS = re.compile(f"[{_BLANK}]+")
_NO_SENTENCE = "has no sentence; expected a word and its tag in columns, one word per line"


class Columns(NamedTuple):
    """The columns to read, counted from 0, or from the end if negative.

    Attributes:
        token: The column of the words.
        tag: The column of the tags; None if tags are not read.
    """

    token: int = 0
    tag: int | None = -1


@dataclass(frozen=True)
class Sentence:
    """A sentence of a CoNLL file, with the lines that it was read from.

    Attributes:
        path: Path or URL of the file, for messages.
        words: The words.
        tags: The tag of each word; empty if tags are not read.
        scheme: The scheme of the tags in this file; None if tags are not read.
        lines: The lines of the file that belong to the sentence: those of its words, and all blank
            lines, comments and lines of -DOCSTART- before them. The last sentence of a file also
            has the lines after it. So the lines of all sentences together are the whole file.
        rows: For each word, the index of its line in `lines`.
        first_line: The number in the file of the first entry of `lines`, from 1.
        separator: The character between the columns: a tab or a space.
    """

    path: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    scheme: Scheme | None
    lines: tuple[str, ...]
    rows: tuple[int, ...]
    first_line: int
    separator: str

    def locate(self, index: int) -> str:
        """Returns the place of a word for a message, such as "test.conll:7".

        Args:
            index: The index of the word in the sentence.
        """
        return f"{self.path}:{self.first_line + self.rows[index]}"

    def tags_in(self, scheme: Scheme) -> tuple[str, ...]:
        """Returns the tags of the sentence, translated to a scheme.

        Args:
            scheme: The scheme of the tags that are returned.
        """
        if scheme == self.scheme:
            return self.tags
        return tuple(write_tags(find_entities(self.tags), len(self.tags), scheme))


class _RowFormat(NamedTuple):
    """How the lines of a file are divided into columns.

    Attributes:
        separator: The separator of columns; None means any number of spaces and tabs.
        num_columns: The number of columns that most lines have.
    """

    separator: str | None
    num_columns: int


def read_conll(text: str, path: str, columns: Columns) -> list[Sentence]:
    """Parses the sentences of a file, in order.

    Args:
        text: The content of the file.
        path: Path or URL of the file, for messages.
        columns: The columns to read.

    Raises:
        ValueError: The file has no sentence, a line has other columns than most lines, or the tags
            are of no scheme. The message names file and line.
    """
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    row_format = _find_row_format(lines, path, columns)
    groups = _group_lines(lines, path, columns, row_format)
    if not groups:
        raise ValueError(f"{path}: {_NO_SENTENCE}")
    starts = list(groups)
    sentences = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        words, tags = zip(*groups[start].values(), strict=True)
        sentences.append(
            Sentence(
                path=path,
                words=words,
                tags=tags if columns.tag is not None else (),
                scheme=None,
                lines=tuple(lines[start:end]),
                rows=tuple(row - start for row in groups[start]),
                first_line=start + 1,
                separator=row_format.separator or " ",
            )
        )
    if columns.tag is None:
        return sentences
    scheme = find_scheme([(sentence.tags, sentence.locate) for sentence in sentences])
    return [replace(sentence, scheme=scheme) for sentence in sentences]


def _group_lines(
    lines: Sequence[str], path: str, columns: Columns, row_format: _RowFormat
) -> dict[int, dict[int, tuple[str, str]]]:
    """Reads the lines with words, and groups them by sentence.

    Args:
        lines: All lines of the file. A blank line or a line of -DOCSTART- ends a sentence.
        path: Path or URL of the file, for messages.
        columns: The columns to read.
        row_format: How the lines are divided into columns.

    Returns:
        A dict with one entry for each sentence. The key is the index in `lines` of the first line
        that belongs to the sentence (`Sentence.lines`): 0 for the first sentence, otherwise the
        line that ended the previous sentence. The value is a dict from the index of each line with
        a word to the word and its tag.

    Raises:
        ValueError: A line is malformed.
    """
    start = 0
    groups: dict[int, dict[int, tuple[str, str]]] = {start: {}}
    for index, line in enumerate(lines):
        cells = _split(line, row_format.separator)
        if _is_comment(line, cells, row_format, columns.tag):
            continue
        if cells and cells[columns.token % len(cells)] != DOCUMENT_START:
            place = f"{path}:{index + 1}"
            groups[start][index] = _read_row(place, line, cells, row_format.num_columns, columns)
        elif groups[start]:
            start = index
            groups[start] = {}
    if not groups[start]:
        del groups[start]
    return groups


def add_column(sentences: Sequence[Sentence], tags: Sequence[Sequence[str]]) -> str:
    """Returns the text of a file with a further column of tags.

    Blank lines and comments stay as they are. A line of -DOCSTART- gets the tag O.

    Args:
        sentences: All sentences of the file, from `read_conll`.
        tags: The new tags of each sentence.
    """
    new_lines = []
    for sentence, sentence_tags in zip(sentences, tags, strict=True):
        tag_of_row = dict(zip(sentence.rows, sentence_tags, strict=True))
        for row, line in enumerate(sentence.lines):
            has_columns = row in tag_of_row or DOCUMENT_START in _split(line, None)
            cell = f"{sentence.separator}{tag_of_row.get(row, OUTSIDE)}"
            new_lines.append(line + cell if has_columns else line)
    return "\n".join(new_lines) + "\n"


def _split(line: str, separator: str | None) -> list[str]:
    """Returns the cells of a line; a blank line has none.

    Args:
        line: The line.
        separator: The separator of cells; None means any number of spaces and tabs.
    """
    stripped = line.strip(_BLANK)
    if not stripped:
        return []
    return line.split(separator) if separator else _BLANKS.split(stripped)


def _find_row_format(lines: Sequence[str], path: str, columns: Columns) -> _RowFormat:
    """Finds out how the lines of a file are divided into columns.

    If any line has a tab, tabs separate the columns of all lines. Otherwise spaces do. Lines that
    begin with "#" are not looked at.

    Args:
        lines: All lines of the file.
        path: Path or URL of the file, for messages.
        columns: The columns that are to be read.

    Raises:
        ValueError: The file has no sentence, or lacks a column that is to be read.
    """
    filled = [
        (number, line)
        for number, line in enumerate(lines, 1)
        if line.strip(_BLANK) and line[0] != "#"
    ]
    if not filled:
        raise ValueError(f"{path}: {_NO_SENTENCE}")
    separator = "\t" if any("\t" in line for _, line in filled) else None
    rows = [(number, line) for number, line in filled if DOCUMENT_START not in line] or filled
    sizes = [len(_split(line, separator)) for _, line in rows]
    count = Counter(sizes).most_common(1)[0][0]
    number = rows[sizes.index(count)][0]
    place = f"{path}:{number}: {count} columns"
    token, tag = columns
    for name, column in (("token_column", token), ("tag_column", tag)):
        if column is not None and not -count <= column < count:
            raise ValueError(f"{place}, {name} is {column}, counted from 0")
    if tag is not None and (tag - token) % count == 0:
        same = f"so token_column {token} and tag_column {tag} are the same"
        raise ValueError(f"{place}, {same}; expected a word and its tag")
    return _RowFormat(separator, count)


def _is_comment(line: str, cells: Sequence[str], row_format: _RowFormat, tag: int | None) -> bool:
    """Returns whether a line is a comment.

    A comment begins with "#", but so may a word. If columns are separated by tabs, a line with a
    tab is no comment. Otherwise a line is no comment if it has as many columns as most lines and,
    if tags are read, a tag in their column.

    Args:
        line: The line.
        cells: The cells of the line.
        row_format: How the lines of the file are divided.
        tag: The column of the tags; None if tags are not read.
    """
    if not line.startswith("#"):
        return False
    if row_format.separator == "\t":
        return "\t" not in line
    return len(cells) != row_format.num_columns or (tag is not None and not is_tag(cells[tag]))


def _read_row(
    where: str, line: str, cells: Sequence[str], count: int, columns: Columns
) -> tuple[str, str]:
    """Returns the word and the tag of a line; the tag is "O" if tags are not read.

    Args:
        where: File and line, for messages.
        line: The line.
        cells: The cells of the line.
        count: The number of columns that the line must have.
        columns: The columns to read.

    Raises:
        ValueError: The line has another number of columns, no word, or no valid tag.
    """
    if len(cells) != count:
        says = f"{len(cells)} columns in {quote(line)}, most lines have {count}"
        raise ValueError(f"{where}: {says}; separate columns by one tab, or by spaces")
    word = cells[columns.token]
    if not word.strip(_BLANK):
        raise ValueError(f"{where}: no word in column {columns.token} (token_column)")
    tag = OUTSIDE if columns.tag is None else cells[columns.tag]
    if not is_tag(tag):
        says = f"{quote(tag)} in column {columns.tag} is neither O nor B-, I-, E- or S- with a type"
        raise ValueError(f"{where}: {says}; tag_column says which column holds the tags")
    return word, tag
