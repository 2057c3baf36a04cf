"""Replaces names of environment variables in storage options by the values of the variables.

Storage options are sent to the workers of a job, and everybody who may read the description of the
job may read them. So that a secret is not sent, an option may be the text `${NAME}`. Each process
replaces it by its own environment variable when it opens a filesystem. A text that has more than
that in it is not changed, and neither is the value of a variable, even if it reads `${NAME}`.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill_in_variables(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options in which each text `${NAME}` is replaced by that environment variable.

    Args:
        options: Options of an fsspec filesystem, which may be nested.

    Raises:
        ValueError: A variable is not set in this process.
    """
    return {name: _fill_in(value, name) for name, value in options.items()}


def _fill_in(value: Any, option: str) -> Any:
    """Returns a value in which each text `${NAME}` is replaced (`fill_in_variables`).

    Args:
        value: The value of an option, or a value inside it.
        option: The name of the option, for the message.

    Raises:
        ValueError: The environment variable is not set.
    """
    if isinstance(value, Mapping):
        return {name: _fill_in(part, name) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_fill_in(part, option) for part in value)
    variable = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
    if variable is None:
        return value
    name = variable[1]
    if name not in os.environ:
        raise ValueError(
            f"storage_options: {option} is the value of the environment variable {name}, which is"
            " not set in this process; set it where the job runs, workers included"
        )
    return os.environ[name]
