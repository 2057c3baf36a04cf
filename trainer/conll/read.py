"""CoNLL columns: a file's lines to sentences of words and tags, and back with one more column.

Rules (docs/token-classification.md):

- A blank line, one of white space alone, and -DOCSTART- end a sentence.
- Columns are separated by tabs if any line that does not begin with "#" has one, otherwise by any
  white space.
- A line that begins with "#" is a comment if, with tabs, it has none; otherwise if it has another
  number of columns than the first line without "#", or no tag in its tag column: words such as #NER
  are words.
- Every other line has as many columns as the first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trainer.conll.tags import (
    OUTSIDE,
    Scheme,
    SchemeName,
    find_entities,
    is_tag,
    resolve_scheme,
    write_tags,
)

DOCUMENT_START = "-DOCSTART-"


@dataclass(frozen=True)
class Columns:
    """Where the words and tags of a file stand.

    Attributes:
        token: Number of the words' column, from 0; from the end if negative.
        tag: Number of the tags' column; None where tags are not read.
    """

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


@dataclass(frozen=True)
class _Layout:
    """How the lines of one file are read."""

    path: str
    columns: Columns
    separator: str | None
    num_columns: int

    def split(self, line: str) -> list[str]:
        return line.split(self.separator) if line.strip() else []

    def is_comment(self, line: str, cells: Sequence[str]) -> bool:
        if not line.startswith("#"):
            return False
        if self.separator == "\t":
            return "\t" not in line
        return len(cells) != self.num_columns or (
            self.columns.tag is not None and not is_tag(cells[self.columns.tag])
        )

    def read_row(self, number: int, cells: Sequence[str]) -> tuple[str, str]:
        """Word and tag of a line; the tag is "O" where tags are not read."""
        where = f"{self.path}:{number}"
        if len(cells) != self.num_columns:
            raise ValueError(
                f"{where}: {len(cells)} columns, the first line of words has {self.num_columns}"
            )
        word = cells[self.columns.token]
        if not word.strip():
            raise ValueError(f"{where}: no word in column {self.columns.token} (token_column)")
        tag = OUTSIDE if self.columns.tag is None else cells[self.columns.tag]
        if not is_tag(tag):
            raise ValueError(
                f"{where}: {tag!r} in column {self.columns.tag} is neither O nor B-, I-, E- or S- with a type; "
                "tag_column says which column holds the tags"
            )
        return word, tag


_Block = tuple[int, list[int], list[tuple[str, str]]]
"""What a sentence consists of: its first line, those of its words, and words with tags."""


def read_conll(
    text: str, path: str, columns: Columns, scheme: SchemeName = "auto"
) -> list[Sentence]:
    """Sentences of a file's text, in order.

    Raises:
        ValueError: No sentence, a wrong number of columns, an empty word, what is no tag, or tags
            that are not of one scheme; says file and line.
    """
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    layout = _find_layout(lines, path, columns)
    sentences = list(_read_sentences(lines, layout))
    if columns.tag is None:
        return [replace(sentence, tags=()) for sentence in sentences]
    of_file = resolve_scheme([(sentence.tags, sentence.locate) for sentence in sentences], scheme)
    return [replace(sentence, scheme=of_file) for sentence in sentences]


def add_column(sentences: Sequence[Sentence], tags: Sequence[Sequence[str]]) -> str:
    """The file's lines, each word's with its tag as a further column; -DOCSTART- has O."""
    written = []
    for sentence, column in zip(sentences, tags, strict=True):
        of_row = dict(zip(sentence.rows, column, strict=True))
        for row, line in enumerate(sentence.lines):
            if row not in of_row and DOCUMENT_START not in line.split():
                written.append(line)
            else:
                written.append(f"{line}{sentence.separator}{of_row.get(row, OUTSIDE)}")
    return "\n".join(written) + "\n"


def _find_layout(lines: Sequence[str], path: str, columns: Columns) -> _Layout:
    filled = [
        (number, line)
        for number, line in enumerate(lines, start=1)
        if line.strip() and line[0] != "#"
    ]
    if not filled:
        raise ValueError(
            f"{path}: has no sentence; expected a word and its tag in columns, one word a line"
        )
    separator = "\t" if any("\t" in line for _, line in filled) else None
    number, first = next(((n, line) for n, line in filled if DOCUMENT_START not in line), filled[0])
    num_columns = len(first.split(separator))
    for name, column in (("token_column", columns.token), ("tag_column", columns.tag)):
        if column is not None and not -num_columns <= column < num_columns:
            raise ValueError(
                f"{path}:{number}: {num_columns} columns, {name} is {column}, counted from 0"
            )
    if columns.tag is not None and (columns.tag - columns.token) % num_columns == 0:
        raise ValueError(
            f"{path}:{number}: {num_columns} columns, so token_column {columns.token} and tag_column "
            f"{columns.tag} are the same; expected a word and its tag"
        )
    return _Layout(path, columns, separator, num_columns)


def _read_sentences(lines: Sequence[str], layout: _Layout) -> Iterator[Sentence]:
    """Sentences with the scheme still unknown; the last has the lines that follow it, too."""
    blocks, first, rows, found = list[_Block](), 0, list[int](), list[tuple[str, str]]()
    for index, line in enumerate(lines):
        cells = layout.split(line)
        if cells and layout.is_comment(line, cells):
            continue
        if cells and cells[layout.columns.token % len(cells)] != DOCUMENT_START:
            rows.append(index)
            found.append(layout.read_row(index + 1, cells))
        elif rows:
            blocks.append((first, rows, found))
            first, rows, found = index, [], []
    if rows:
        blocks.append((first, rows, found))
    ends = [*(first for first, _, _ in blocks[1:]), len(lines)]
    for (first, rows, found), end in zip(blocks, ends, strict=True):
        words, tags = zip(*found, strict=True)
        yield Sentence(
            path=layout.path,
            words=words,
            tags=tags,
            scheme=None,
            lines=tuple(lines[first:end]),
            rows=tuple(row - first for row in rows),
            first_line=first + 1,
            separator=layout.separator or " ",
        )
