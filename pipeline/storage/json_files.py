"""Reads JSON files; every error names the file, what it holds and what to do.

Each function takes a `remedy`: what the user can do about a damaged file.
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
        FileNotFoundError: It is missing; the message ends with the remedy.
        ValueError: It holds anything else than a JSON object; the message ends with the remedy.
    """
    return parse_object(read_present(folder, name, remedy), folder.locate(name), remedy)


def read_present(folder: Folder, name: str, remedy: str) -> bytes:
    """Reads a file that must be there.

    Raises:
        FileNotFoundError: It is missing; the message ends with the remedy.
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
    found = parse_json(data, where, remedy)
    if not isinstance(found, dict):
        shown = repr(found)[:_LONGEST_SHOWN]
        raise ValueError(  # noqa: TRY004 - a user's fault
            f"{where} is damaged: it holds {shown}, expected a JSON object; {remedy}"
        )
    return found


def parse_names(data: bytes, where: str, remedy: str) -> list[str]:
    """Parses a JSON list of texts; its errors are those of `parse_object`."""
    found = parse_json(data, where, remedy)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        said = f"it holds {repr(found)[:_LONGEST_SHOWN]}, expected a list of names"
        raise ValueError(f"{where} is damaged: {said}; {remedy}")
    return found


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
    """Reports a missing key, or a value of a wrong type, as damage of the file it was read from.

    Raises:
        ValueError: The block raised KeyError, TypeError, AttributeError or IndexError.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        said = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{where} is damaged, or of another version: {said}; {remedy}") from error
