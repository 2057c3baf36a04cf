"""Reads JSON files; every error names the file, what was found in it and what to do.

Each function takes a `remedy`, which ends its messages: what the user can do about a damaged file.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from pipeline.storage.folder import Folder

_LONGEST_SHOWN = 60


def read_object(folder: Folder, name: str, remedy: str) -> dict[str, Any]:
    """Reads a file that holds a JSON object.

    Raises:
        FileNotFoundError: The file is missing; the message ends with the remedy.
        ValueError: The file holds anything but a JSON object; the message ends with the remedy.
    """
    return parse_object(read_present(folder, name, remedy), folder.locate(name), remedy)


def read_present(folder: Folder, name: str, remedy: str) -> bytes:
    """Reads a file that must exist.

    Raises:
        FileNotFoundError: The file is missing; the message ends with the remedy.
    """
    try:
        return folder.read(name)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{folder.locate(name)} is missing; {remedy}") from error


def parse_object(data: bytes | str, where: str, remedy: str) -> dict[str, Any]:
    """Parses a JSON object.

    Raises:
        ValueError: `data` is not JSON, or not an object; the message begins with `where` and ends
            with the remedy.
    """
    value = parse_json(data, where, remedy)
    if not isinstance(value, dict):
        shown = repr(value)[:_LONGEST_SHOWN]
        raise ValueError(  # noqa: TRY004 - a user's fault
            f"{where} is damaged: it holds {shown}, expected a JSON object; {remedy}"
        )
    return value


def parse_names(data: bytes, where: str, remedy: str) -> list[str]:
    """Parses a JSON list of strings.

    Raises:
        ValueError: `data` is not JSON, or not such a list; the message begins with `where` and ends
            with the remedy.
    """
    names = parse_json(data, where, remedy)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        found = f"it holds {repr(names)[:_LONGEST_SHOWN]}, expected a list of names"
        raise ValueError(f"{where} is damaged: {found}; {remedy}")
    return names


def parse_json(data: bytes | str, where: str, remedy: str) -> Any:
    """Parses JSON of any kind.

    Raises:
        ValueError: `data` is not JSON, or is nested too deeply; the message begins with `where`
            and ends with the remedy.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is damaged, it is not JSON: {error}; {remedy}") from error


@contextlib.contextmanager
def expected_fields(where: str, remedy: str) -> Iterator[None]:
    """Wraps code that takes values out of parsed JSON; reports a missing or wrong one as damage.

    Args:
        where: The file that the JSON was read from, for the message.
        remedy: What the user can do about it, for the message.

    Raises:
        ValueError: The block raised KeyError, TypeError, AttributeError or IndexError.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        found = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{where} is damaged, or of another version: {found}; {remedy}") from error
