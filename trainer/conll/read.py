"""CoNLL columns: a file's lines to sentences of words and tags, and back with one more column.

docs/token-classification.md has the rules of files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from trainer.conll.tags import OUTSIDE, Scheme, find_entities, find_scheme, is_tag, write_tags

DOCUMENT_START = "-DOCSTART-"


class Columns(NamedTuple):
    """Where words and tags stand, from 0, from the end if negative; None where tags are not read."""

    token: int = 0
    tag: int | None = -1


@dataclass(frozen=True)
class Sentence:
    """Words with their tags, and the lines they stand in.

    Attributes:
        path: The file.
        words: Words of the sentence, at least one.
        tags: Tag of each word, in `scheme`; empty where tags are not read.
        scheme: Scheme of the whole file; None where tags are not read.
        lines: The file's lines after the sentence before up to this one's last; of the last
            sentence up to the end.
        rows: Which of `lines` hold the words.
        first_line: Number of the first of `lines`, from 1.
        separator: What stands between columns.
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


class _Layout(NamedTuple):
    """How the lines of one file are read."""

    path: str
    columns: Columns
    separator: str | None
    num_columns: int

    def is_comment(self, line: str, cells: Sequence[str]) -> bool:
        if not line.startswith("#"):
            return False
        if self.separator == "\t":
            return "\t" not in line
        tag = self.columns.tag
        return len(cells) != self.num_columns or (tag is not None and not is_tag(cells[tag]))

    def read_row(self, number: int, cells: Sequence[str]) -> tuple[str, str]:
        """Word and tag of a line; the tag is "O" where tags are not read."""
        where, (token, tag_column) = f"{self.path}:{number}", self.columns
        if len(cells) != self.num_columns:
            says = f"{len(cells)} columns, the first line of words has {self.num_columns}"
            raise ValueError(f"{where}: {says}")
        word = cells[token]
        if not word.strip():
            raise ValueError(f"{where}: no word in column {token} (token_column)")
        tag = OUTSIDE if tag_column is None else cells[tag_column]
        if not is_tag(tag):
            says = f"{tag!r} in column {tag_column} is neither O nor B-, I-, E- or S- with a type"
            raise ValueError(f"{where}: {says}; tag_column says which column holds the tags")
        return word, tag


def read_conll(text: str, path: str, columns: Columns) -> list[Sentence]:
    """Sentences of a file's text, in order; a ValueError says file and line of what is malformed."""
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    sentences = list(_read_sentences(lines, _find_layout(lines, path, columns)))
    if columns.tag is None:
        return [replace(sentence, tags=()) for sentence in sentences]
    scheme = find_scheme([(sentence.tags, sentence.locate) for sentence in sentences])
    return [replace(sentence, scheme=scheme) for sentence in sentences]


def add_column(sentences: Sequence[Sentence], tags: Sequence[Sequence[str]]) -> str:
    """The file's lines, each word's with its tag as a further column; -DOCSTART- has O."""
    written = []
    for sentence, column in zip(sentences, tags, strict=True):
        of_row = dict(zip(sentence.rows, column, strict=True))
        for row, line in enumerate(sentence.lines):
            has_columns = row in of_row or DOCUMENT_START in line.split()
            tag = f"{sentence.separator}{of_row.get(row, OUTSIDE)}"
            written.append(line + tag if has_columns else line)
    return "\n".join(written) + "\n"


def _find_layout(lines: Sequence[str], path: str, columns: Columns) -> _Layout:
    filled = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and line[0] != "#"]
    if not filled:
        wanted = "expected a word and its tag in columns, one word a line"
        raise ValueError(f"{path}: has no sentence; {wanted}")
    separator = "\t" if any("\t" in line for _, line in filled) else None
    number, first = next(((n, line) for n, line in filled if DOCUMENT_START not in line), filled[0])
    count = len(first.split(separator))
    found, (token, tag) = f"{path}:{number}: {count} columns", columns
    for name, column in (("token_column", token), ("tag_column", tag)):
        if column is not None and not -count <= column < count:
            raise ValueError(f"{found}, {name} is {column}, counted from 0")
    if tag is not None and (tag - token) % count == 0:
        same = f"so token_column {token} and tag_column {tag} are the same"
        raise ValueError(f"{found}, {same}; expected a word and its tag")
    return _Layout(path, columns, separator, count)


def _read_sentences(lines: Sequence[str], layout: _Layout) -> Iterator[Sentence]:
    """Sentences with the scheme still unknown; the last has the lines that follow it, too."""
    sentences: list[dict[int, tuple[str, str]]] = [{}]
    firsts = [0]
    for index, line in enumerate(lines):
        cells = line.split(layout.separator) if line.strip() else []
        if cells and layout.is_comment(line, cells):
            continue
        if cells and cells[layout.columns.token % len(cells)] != DOCUMENT_START:
            sentences[-1][index] = layout.read_row(index + 1, cells)
        elif sentences[-1]:
            sentences.append({})
            firsts.append(index)
    if not sentences[-1]:
        del sentences[-1], firsts[-1]
    for first, found, end in zip(firsts, sentences, [*firsts[1:], len(lines)], strict=True):
        words, tags = zip(*found.values(), strict=True)
        yield Sentence(
            path=layout.path,
            words=words,
            tags=tags,
            scheme=None,
            lines=tuple(lines[first:end]),
            rows=tuple(row - first for row in found),
            first_line=first + 1,
            separator=layout.separator or " ",
        )
