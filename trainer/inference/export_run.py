"""A checkpoint of a run as a model folder, for Hugging Face or for Google's program."""

from typing import Any

from pipeline.storage.folder import parse_storage_options
from trainer.conversion.export import export_google, export_hf
from trainer.inference.open_model import open_run
from trainer.tool_settings import ExportSettings

_WRITERS = {"huggingface": export_hf, "google": export_google}


def export_run(settings: ExportSettings) -> dict[str, Any]:
    """Writes the model folder.

    Returns:
        "exported", "checkpoint" and "step", for a person to read.

    Raises:
        FileNotFoundError: There is no run, or no committed checkpoint.
        ValueError: The checkpoint is damaged, or the output's place is taken.
    """
    opened = open_run(settings.run, parse_storage_options(settings.storage_options))
    assert opened.vocab is not None, "a run has its vocabulary"
    _WRITERS[settings.output_format](
        opened.state,
        opened.config,
        opened.vocab,
        settings.output,
        lower_case=opened.lower_case,
        provenance=opened.provenance,
    )
    return {"exported": settings.output, "checkpoint": opened.where, "step": opened.provenance["steps"]}
