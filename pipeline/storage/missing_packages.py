"""What to install where a package is missing: the extras of pyproject.toml, by the names that code imports."""

import importlib
from typing import Any

_STORES = ("pipeline", "trainer")
EXTRAS_OF = {
    "apache_beam": ("pipeline",), "s3fs": _STORES, "gcsfs": _STORES,
    "mwparserfromhell": ("sources",), "fastwarc": ("sources",), "resiliparse": ("sources",),
    "py3langid": ("sources",),
    "torch": ("trainer",), "deepspeed": ("trainer",), "safetensors": ("trainer",), "tensorboard": ("trainer",),
    "isal": ("trainer",), "google_crc32c": ("trainer",), "webdataset": ("trainer",),
}  # fmt: skip
"""Import name of a package -> the extras that bring it."""

CORE = ("numpy", "pyarrow", "fsspec", "tokenizers", "sentencex", "zstandard", "yaml", "tqdm")
"""Import names of what every extra brings."""


def describe_missing(error: BaseException | None) -> str | None:
    """What to run for a package of ours that could not be imported; None where it is none of them.

    fsspec raises an error of its own after that of its driver, so causes are looked at too.
    """
    while error is not None:
        package = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and (package in EXTRAS_OF or package in CORE):
            extras = EXTRAS_OF.get(package, ("pipeline,trainer",))
            return f"the package {package} is not installed here: {install_line(*extras)}"
        error = error.__cause__ or error.__context__
    return None


def install_line(*extras: str) -> str:
    """What to run for a package that any of these extras brings."""
    installs = " or ".join(f"pip install -e '.[{extra}]'" for extra in extras)
    return f"in the checkout run `. scripts/environment.sh`, or {installs}"


def import_extra(name: str, what: str) -> Any:
    """A module of the extra `sources`, imported only by the function that needs it.

    Raises:
        ValueError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{what} need {name}, which is not installed: {install_line('sources')}") from error
