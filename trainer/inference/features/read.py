"""Texts of files, one after another: each a line, or a field of a line's JSON object.

CoNLL files are read whole.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline.storage.compression import decompress, is_compressed, plain_name
from pipeline.storage.folder import Folder
from trainer.inference.features.settings import FeaturesSettings

CONLL_SUFFIXES = (".conll", ".iob2", ".bio", ".conllu")
READ_BYTES = 2**20


@dataclass(frozen=True)
class InputText:
    """A text and where it comes from.

    Attributes:
        number: Number of the text in the whole input, from 0.
        source: URL of its file.
        line: Line on which the text begins, from 1.
        text: The text as it stands there; words are joined by spaces.
        words: Words of a CoNLL sentence; None for plain text.
        name: What --id_field holds.
    """

    number: int
    source: str
    line: int
    text: str
    words: tuple[str, ...] | None = None
    name: str | None = None


@dataclass(frozen=True)
class InputFile:
    """A file of texts.

    Attributes:
        url: For messages and rows.
        size: Bytes as stored.
    """

    url: str
    size: int


def plain_texts(texts: Iterable[str]) -> Iterator[InputText]:
    """Texts in memory as those of a file called "memory", a line each."""
    for number, text in enumerate(texts):
        yield InputText(number, "memory", number + 1, text)


def find_files(inputs: Sequence[str]) -> list[InputFile]:
    """The files that the user named, those below folders, and matches of globs, in order of names.

    Raises:
        FileNotFoundError: One names nothing.
    """
    found = []
    for name in inputs:
        if not (files := sorted(_find_files(Folder(name)), key=lambda file: file.url)):
            raise FileNotFoundError(f"{name} names no file; give files, folders or quoted globs")
        found += files
    return found


def _find_files(place: Folder) -> Iterator[InputFile]:
    """What a place stands for: a file, those below a folder, or what matches a glob."""
    if any(character in place.path for character in "*?["):
        matches = place.ask(lambda: place.filesystem.glob(place.path, detail=True))
        for path, info in matches.items():
            if info["type"] == "file":
                url = path if place.is_local else place.filesystem.unstrip_protocol(path)
                yield InputFile(url, info["size"])
    elif place.is_file():
        folder, name = Folder.of_file(place.url)
        yield InputFile(place.locate(), folder.size(name))
    else:
        yield from (InputFile(place.locate(name), size) for name, size in place.list().items())


def iterate_texts(
    files: Sequence[InputFile], settings: FeaturesSettings, report_bytes: Callable[[int], object]
) -> Iterator[InputText]:
    """Every text in order.

    Args:
        files: What `find_files` found.
        settings: What format, field and column.
        report_bytes: Called with the bytes read of all files so far.

    Raises:
        ValueError: A line that is not UTF-8, not JSON, or lacks the field; says file and line.
    """
    number, finished = 0, 0
    for file in files:
        folder, name = Folder.of_file(file.url)
        with folder.open(name) as stored:
            for read in _read_file(file, stored, settings):
                yield InputText(number, file.url, *read)
                number += 1
                if number % 64 == 0:
                    report_bytes(finished + min(stored.tell(), file.size))
        finished += file.size
        report_bytes(finished)


_Read = tuple[int, str, tuple[str, ...] | None, str | None]
"""Line, text, words and name."""


def _read_file(file: InputFile, stored: Any, settings: FeaturesSettings) -> Iterator[_Read]:
    blocks: Iterator[bytes] = iter(partial(stored.read, READ_BYTES), b"")
    content = decompress(blocks, file.url) if is_compressed(file.url) else blocks
    chosen = settings.format if settings.format != "auto" else _format_of(plain_name(file.url))
    if chosen == "conll":
        yield from _read_conll(b"".join(content), file.url, settings.token_column)
        return
    for line, data in enumerate(_split_lines(content), start=1):
        text = _decode(data.rstrip(b"\r\n"), f"{file.url}:{line}")
        yield (
            (line, text, None, None)
            if chosen == "text"
            else (line, *_parse_json(text, file.url, line, settings))
        )


def _split_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    pending = b""
    for block in blocks:
        *lines, pending = (pending + block).split(b"\n")
        yield from lines
    if pending:
        yield pending


def _format_of(name: str) -> str:
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    return "conll" if name.endswith(CONLL_SUFFIXES) else "text"


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: is not UTF-8 ({error.reason}); convert the file") from error


def _parse_json(
    text: str, url: str, line: int, settings: FeaturesSettings
) -> tuple[str, None, str | None]:
    where = f"{url}:{line}"
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({error}); expected an object a line") from error
    wanted = [settings.text_field] + ([settings.id_field] if settings.id_field else [])
    for name in wanted:
        if not isinstance(record, dict) or name not in record:
            found = ", ".join(record) if isinstance(record, dict) else type(record).__name__
            raise ValueError(
                f"{where}: no field {name!r}, found {found}; --text_field and --id_field name what to read"
            )
    if not isinstance(record[settings.text_field], str):
        raise ValueError(  # noqa: TRY004
            f"{where}: field {settings.text_field!r} is {type(record[settings.text_field]).__name__}, expected a string"
        )
    return (
        record[settings.text_field],
        None,
        str(record[settings.id_field]) if settings.id_field else None,
    )


def _read_conll(data: bytes, url: str, token_column: int) -> Iterator[_Read]:
    from trainer.conll.read import Columns, read_conll

    for sentence in read_conll(_decode(data, url), url, Columns(token_column, None)):
        first = sentence.first_line + sentence.rows[0]
        yield first, " ".join(sentence.words), sentence.words, None
