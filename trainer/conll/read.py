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
"""The characters that stand between columns, and alone in a line that ends a sentence."""
_BLANKS = re.compile(f"[{_BLANK}]+")


class Columns(NamedTuple):
    """Where words and tags stand, from 0, from the end if negative; None where no tags are read."""

    token: int = 0
    tag: int | None = -1


@dataclass(frozen=True)
class Sentence:
    """Words with their tags, and the lines they stand in.

    `lines` begin after the sentence before, at line `first_line` of the file, and end with the last
    word's, or the file; `rows` of them hold the words. Where tags are not read there are none, and
    no scheme.
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
        """Where a word stands: file and line."""
        return f"{self.path}:{self.first_line + self.rows[index]}"

    def tags_in(self, scheme: Scheme) -> tuple[str, ...]:
        """The sentence's entities as tags of another scheme."""
        if scheme == self.scheme:
            return self.tags
        return tuple(write_tags(find_entities(self.tags), len(self.tags), scheme))


def read_conll(text: str, path: str, columns: Columns) -> list[Sentence]:
    """Sentences of a file's text, in order; a ValueError names file and line of a fault."""
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    separator, count = _find_layout(lines, path, columns)
    groups: list[dict[int, tuple[str, str]]] = [{}]  # words and tags by line, of each sentence
    firsts = [0]
    for index, line in enumerate(lines):
        cells = _split(line, separator)
        if _is_comment(line, cells, separator, count, columns.tag):
            continue
        if cells and cells[columns.token % len(cells)] != DOCUMENT_START:
            groups[-1][index] = _read_row(f"{path}:{index + 1}", line, cells, count, columns)
        elif groups[-1]:
            groups.append({})
            firsts.append(index)
    if not groups[-1]:
        del groups[-1], firsts[-1]
    sentences = []
    for first, found, end in zip(firsts, groups, [*firsts[1:], len(lines)], strict=True):
        words, tags = zip(*found.values(), strict=True)
        rows, around = tuple(row - first for row in found), tuple(lines[first:end])
        place = (around, rows, first + 1, separator or " ")
        sentences.append(
            Sentence(path, words, tags if columns.tag is not None else (), None, *place)
        )
    if columns.tag is None:
        return sentences
    scheme = find_scheme([(sentence.tags, sentence.locate) for sentence in sentences])
    return [replace(sentence, scheme=scheme) for sentence in sentences]


def add_column(sentences: Sequence[Sentence], tags: Sequence[Sequence[str]]) -> str:
    """The file's lines, each word's with its tag as a further column; -DOCSTART- has O."""
    written = []
    for sentence, column in zip(sentences, tags, strict=True):
        of_row = dict(zip(sentence.rows, column, strict=True))
        for row, line in enumerate(sentence.lines):
            has_columns = row in of_row or DOCUMENT_START in _split(line, None)
            tag = f"{sentence.separator}{of_row.get(row, OUTSIDE)}"
            written.append(line + tag if has_columns else line)
    return "\n".join(written) + "\n"


def _split(line: str, separator: str | None) -> list[str]:
    """Returns the cells of a line; a blank line has none.

    Args:
        line: The line.
        separator: The separator of cells; None separates them by blanks.
    """
    if not (filled := line.strip(_BLANK)):
        return []
    return line.split(separator) if separator else _BLANKS.split(filled)


def _find_layout(lines: Sequence[str], path: str, columns: Columns) -> tuple[str | None, int]:
    """Returns the separator of columns (None means blanks), and the columns that most lines have.

    Raises:
        ValueError: The file has no sentence, or too few columns for the ones that are asked for.
    """
    filled = [
        (number, line)
        for number, line in enumerate(lines, 1)
        if line.strip(_BLANK) and line[0] != "#"
    ]
    if not filled:
        wanted = "expected a word and its tag in columns, one word a line"
        raise ValueError(f"{path}: has no sentence; {wanted}")
    separator = "\t" if any("\t" in line for _, line in filled) else None
    rows = [(number, line) for number, line in filled if DOCUMENT_START not in line] or filled
    sizes = [len(_split(line, separator)) for _, line in rows]
    count = Counter(sizes).most_common(1)[0][0]
    number = rows[sizes.index(count)][0]
    found = f"{path}:{number}: {count} columns"
    token, tag = columns
    for name, column in (("token_column", token), ("tag_column", tag)):
        if column is not None and not -count <= column < count:
            raise ValueError(f"{found}, {name} is {column}, counted from 0")
    if tag is not None and (tag - token) % count == 0:
        same = f"so token_column {token} and tag_column {tag} are the same"
        raise ValueError(f"{found}, {same}; expected a word and its tag")
    return separator, count


def _is_comment(
    line: str, cells: Sequence[str], separator: str | None, count: int, tag: int | None
) -> bool:
    if not line.startswith("#"):
        return False
    if separator == "\t":
        return "\t" not in line
    return len(cells) != count or (tag is not None and not is_tag(cells[tag]))


def _read_row(
    where: str, line: str, cells: Sequence[str], count: int, columns: Columns
) -> tuple[str, str]:
    """Word and tag of a line; the tag is "O" where tags are not read."""
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
