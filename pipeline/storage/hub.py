"""Downloads files of models of the Hugging Face Hub, by names such as `bert-base-uncased`."""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_REVISION = re.compile(r"(?:models--.*)/snapshots/([0-9a-f]{40})")


def is_hub_name(name: str) -> bool:
    """Returns whether a name has the form of a model's name on the Hub, and is no local path.

    The form is `name` or `organization/name`. The Hub is not asked whether it has such a model.
    """
    return not Path(name).exists() and bool(_NAME.fullmatch(name))


@lru_cache
def fetch_from_hub(name: str, files: Sequence[str]) -> Path:
    """Downloads files of a model of the Hub, and returns the local folder that holds them.

    Args:
        name: The model's name, such as `bert-base-uncased`.
        files: Names or patterns of the files. Files that the model lacks are left out.

    Raises:
        FileNotFoundError: The Hub has no such model, or cannot be reached.
    """
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
    """Returns the commit of the model in a folder that `fetch_from_hub` returned: 40 hex digits.

    For any other folder the result is None. Only the path of the folder is looked at.
    """
    match = _REVISION.search(folder)
    return match[1] if match else None
