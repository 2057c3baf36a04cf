"""Models by their names on the Hugging Face Hub: `bert-base-uncased` or `org/name`."""

import re
from pathlib import Path

from trainer.conversion.export import CONFIG, TOKENIZER, TOKENIZER_CONFIG, VOCAB, WEIGHTS

PICKLED_WEIGHTS = "pytorch_model.bin"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_REVISION = re.compile(r"(?:models--.*)/snapshots/([0-9a-f]{40})")


def resolve_model(name: str) -> str:
    """The folder of a model: the name itself, or where a model of the Hub by that name was put.

    Raises:
        FileNotFoundError: It is no folder, and the Hub gives no model of that name.
    """
    if Path(name).exists() or not _NAME.fullmatch(name):
        return name
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            name, allow_patterns=[CONFIG, VOCAB, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS]
        )
        if not Path(folder, WEIGHTS).exists():
            folder = snapshot_download(name, allow_patterns=[CONFIG, VOCAB, PICKLED_WEIGHTS])
    except Exception as error:
        reason = str(error).split("\n", maxsplit=1)[0]
        raise FileNotFoundError(
            f"{name} is no folder here, and the Hugging Face Hub did not give a model of that name "
            f"({type(error).__name__}: {reason}); where there is a network, "
            f"`hf download {name} --local-dir {name}` puts it into that folder"
        ) from error
    return folder


def revision_of(folder: str) -> str | None:
    """The commit that a folder of `resolve_model` holds; None for any other folder."""
    found = _REVISION.search(folder)
    return found[1] if found else None
