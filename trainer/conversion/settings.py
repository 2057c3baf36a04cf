"""Settings of `python -m trainer export`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ExportSettings:
    """Writes a checkpoint as a folder that Hugging Face transformers opens, or as one of ONNX.

    Attributes:
        run: The run's folder, or the URL that its checkpoints were uploaded to (--checkpoint.url).
            The newest checkpoint is taken, of RUN@STEP that of this step. The folder of a model
            will do too.
        output: Folder or fsspec URL to write. An earlier export there is replaced, anything else
            refused.
        output_format: Who reads it: huggingface, or onnx for a graph in place of the weights, which
            servers open without torch.
        storage_options: Options of the run's filesystem, as JSON or @FILE. Its environment
            variables count too.
    """

    run: str
    output: str
    output_format: Literal["huggingface", "onnx"] = "huggingface"
    storage_options: str | None = None
