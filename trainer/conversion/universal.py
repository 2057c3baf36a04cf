"""Writes and reads DeepSpeed's universal checkpoints, with the parameter names of transformers.

DeepSpeed continues from such a checkpoint on any number of ranks. NAME is that of a parameter, and
* is empty, or "zero_pp_rank_0_" for ZeRO-3. The files of a checkpoint are:

    latest_universal                                        the name of the folder beside it
    universal/zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt  a whole parameter and its states
    universal/zero/NAME/step.pt, zero/optimizer_state.pt    the number of updates
    universal/*mp_rank_00_model_states.pt                   counts, which DeepSpeed reads first
"""

import io
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from pipeline.storage.folder import Folder
from pipeline.storage.quoting import join_names, quote
from trainer.conversion.export import read_json
from trainer.conversion.huggingface import from_hf_config, from_hf_state, hf_names
from trainer.conversion.names import CONFIG, LATEST
from trainer.model.config import BertConfig

TAG = "universal"
_KINDS = ("fp32", "exp_avg", "exp_avg_sq")
_MOST_GROUPS = 64
"""The number of parameter groups that are written.

DeepSpeed reads at most as many groups as were written, and takes their settings from the job that
reads them.
"""


def universal_files(
    states: Mapping[str, Mapping[str, Tensor]], config: BertConfig, steps: int, updates: int
) -> dict[str, bytes]:
    """Returns the files of a universal checkpoint of DeepSpeed, all but config.json.

    The result maps the path of each file in the folder of the checkpoint to the file's bytes.

    Args:
        states: The result of `trainer.checkpoints.read.read_states`: for each of "fp32", "exp_avg"
            and "exp_avg_sq", the tensors by our names. A parameter that was not trained may lack
            the last two, which are then written as zeros.
        config: The configuration of the model.
        steps: The number of training steps.
        updates: The number of training steps that changed the weights.
    """
    step = torch.tensor(float(updates))
    whole = {"state": {0: {"step": step}}, "param_groups": [{}]}
    facts = {"ds_version": version("deepspeed"), "param_groups": [{}] * _MOST_GROUPS}
    counts = {"global_steps": steps, "global_samples": steps, "skipped_steps": 0}
    counts |= {"dp_world_size": 1, "mp_world_size": 1}
    files = {
        f"{TAG}/mp_rank_00_model_states.pt": _pickled(counts),
        f"{TAG}/zero_pp_rank_0_mp_rank_00_model_states.pt": _pickled(counts),  # of ZeRO-3
        f"{TAG}/zero/optimizer_state.pt": _pickled({**facts, "optimizer_state_dict": whole}),
        LATEST: TAG.encode(),
    }
    for ours, theirs in hf_names(config).items():
        for kind in _KINDS:
            tensor = states[kind].get(ours)
            if tensor is None:
                tensor = torch.zeros_like(states["fp32"][ours])
            files[f"{TAG}/zero/{theirs}/{kind}.pt"] = _pickled({"param": tensor})
        files[f"{TAG}/zero/{theirs}/step.pt"] = _pickled(step)
    return files


def load_universal(
    folder: str, options: Mapping[str, Any] | None = None
) -> tuple[BertConfig, dict[str, Tensor]]:
    """Reads the model in a universal checkpoint of DeepSpeed, whose folder must have a config.json.

    Args:
        folder: A local folder or an fsspec URL.
        options: Options of the filesystem of a folder at a URL.

    Returns:
        The configuration, and the parameters under our names, fp32, on the CPU.

    Raises:
        ValueError: A file is not one that DeepSpeed writes, or the weights are another model's.
    """
    config = from_hf_config(read_json(folder, CONFIG, options), f"{folder}/{CONFIG}")
    files = Folder(folder, options)
    tag = files.read(LATEST).decode(errors="replace").strip()
    tensors: dict[str, Tensor] = {}
    for name in files.list():
        match = re.fullmatch(rf"{re.escape(tag)}/zero/(.+)/fp32\.pt", name)
        if match:
            tensors[match[1]] = _read_parameter(files.read(name), f"{folder}/{name}")
    if not tensors:
        says = f"{folder}/{LATEST} names the folder {quote(tag)}, which holds no zero/NAME/fp32.pt"
        raise ValueError(f"{says}; copy the checkpoint again")
    return config, from_hf_state(tensors, config, f"{folder}/{tag}")


def _read_parameter(data: bytes, file: str) -> Tensor:
    """Returns the parameter in a file fp32.pt, which is read without running code from it.

    Args:
        data: The content of the file.
        file: The path or URL of the file, for messages.

    Raises:
        ValueError: The file is damaged or holds no parameter.
    """
    cure = "convert the checkpoint again with DeepSpeed's ds_to_universal"
    try:
        content = torch.load(io.BytesIO(data), "cpu", weights_only=True)
    except Exception as error:  # a file that is no pickle fails in a dozen ways
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise ValueError(f"{file}: cannot be read ({reason}); {cure}") from error
    parameter = content.get("param") if isinstance(content, dict) else None
    if isinstance(parameter, Tensor):
        return parameter
    is_dict = isinstance(content, dict)
    what = join_names(map(repr, content)) if is_dict else type(content).__name__
    raise ValueError(f"{file}: holds {what or 'nothing'}, expected a tensor 'param'; {cure}")


def _pickled(value: Any) -> bytes:
    """Returns the content of a file from which torch.load reads the value."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
