"""Parsers of the optional extra `sources`: imported only by the function that needs them."""

import importlib
from typing import Any

from pipeline.storage.missing_packages import install_line


def import_extra(name: str, what: str) -> Any:
    """A module of the extra.

    Raises:
        ValueError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{what} need {name}, which is not installed: {install_line('sources')}") from error
