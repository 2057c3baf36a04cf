"""Files of models by their names on the Hugging Face Hub: `bert-base-uncased` or `org/name`."""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_REVISION = re.compile(r"(?:models--.*)/snapshots/([0-9a-f]{40})")


def is_hub_name(name: str) -> bool:
    """Whether nothing here has this name, and a model of the Hub could."""
    return not Path(name).exists() and bool(_NAME.fullmatch(name))


@lru_cache
def fetch_from_hub(name: str, files: Sequence[str]) -> Path:
    """The folder that holds those of the files that a model of the Hub has."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except Exception as error:
        reason = str(error).split("\n", maxsplit=1)[0]
        raise FileNotFoundError(
            f"{name} is no folder here, and the Hugging Face Hub did not give a model of that name "
            f"({type(error).__name__}: {reason}); where there is a network, "
            f"`hf download {name} --local-dir {name}` puts it into that folder"
        ) from error


def revision_of(folder: str) -> str | None:
    """The commit that a folder of `fetch_from_hub` holds; None for any other folder."""
    found = _REVISION.search(folder)
    return found[1] if found else None
