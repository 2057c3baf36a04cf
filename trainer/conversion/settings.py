"""Settings of `python -m trainer export`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ExportSettings:
    """Writes a checkpoint as a folder that Hugging Face transformers, ONNX Runtime or DeepSpeed opens.

    Attributes:
        run: The run's folder, or the URL that its checkpoints were uploaded to (--checkpoint.url).
            The newest checkpoint is taken, of RUN@STEP that of this step. The folder of a model
            will do too.
        output: Folder or fsspec URL to write. An earlier export there is replaced, anything else
            refused.
        output_format: Who reads it: huggingface; onnx, a graph in place of the weights, which servers
            open without torch; or deepspeed-universal, with the optimizer's state, for
            deepspeed.initialize with load_universal, from a run's folder here.
        storage_options: Options of the run's filesystem, as JSON or @FILE. Its environment
            variables count too.
    """

    run: str
    output: str
    output_format: Literal["huggingface", "onnx", "deepspeed-universal"] = "huggingface"
    storage_options: str | None = None
