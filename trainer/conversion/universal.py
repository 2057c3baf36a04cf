"""DeepSpeed's universal checkpoints, for any number of its ranks, by names of transformers.

latest_universal                                        the name of the folder beside it
universal/zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt  a parameter and its states, whole
universal/zero/NAME/step.pt, zero/optimizer_state.pt    updates that were made
universal/*mp_rank_00_model_states.pt                   counts, read before the others
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
_MOST_GROUPS = 64  # DeepSpeed reads no more than were written; their settings stay the reader's


def universal_files(
    states: Mapping[str, Mapping[str, Tensor]], config: BertConfig, steps: int, updates: int
) -> dict[str, bytes]:
    """The files of a checkpoint, without config.json, from `trainer.checkpoints.read.read_states`.

    Running means that a parameter lacks, as nothing trained it, are zeros.
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
            found = states[kind].get(ours)
            tensor = torch.zeros_like(states["fp32"][ours]) if found is None else found
            files[f"{TAG}/zero/{theirs}/{kind}.pt"] = _pickled({"param": tensor})
        files[f"{TAG}/zero/{theirs}/step.pt"] = _pickled(step)
    return files


def load_universal(folder: str) -> tuple[BertConfig, dict[str, Tensor]]:
    """Loads a universal checkpoint of DeepSpeed that has a config.json in its folder.

    Returns:
        The config, and the parameters under our names, in fp32.

    Raises:
        ValueError: A file is not one that DeepSpeed writes, or the weights are another model's.
    """
    config, files = from_hf_config(read_json(folder, CONFIG), f"{folder}/{CONFIG}"), Folder(folder)
    tag = files.read(LATEST).decode(errors="replace").strip()
    tensors: dict[str, Tensor] = {}
    for name in files.list():
        if match := re.fullmatch(rf"{re.escape(tag)}/zero/(.+)/fp32\.pt", name):
            tensors[match[1]] = _read_parameter(files.read(name), f"{folder}/{name}")
    if not tensors:
        says = f"{folder}/{LATEST} names the folder {quote(tag)}, which holds no zero/NAME/fp32.pt"
        raise ValueError(f"{says}; copy the checkpoint again")
    return config, from_hf_state(tensors, config, f"{folder}/{tag}")


def _read_parameter(data: bytes, file: str) -> Tensor:
    """Returns the parameter in the bytes of a file fp32.pt.

    Raises:
        ValueError: The file is damaged or holds no parameter.
    """
    cure = "convert the checkpoint again with DeepSpeed's ds_to_universal"
    try:
        found = torch.load(io.BytesIO(data), "cpu", weights_only=True)
    except Exception as error:  # a file that is no pickle fails in a dozen ways
        said = str(error).partition("\n")[0][:200] or type(error).__name__
        raise ValueError(f"{file}: cannot be read ({said}); {cure}") from error
    parameter = found.get("param") if isinstance(found, dict) else None
    if isinstance(parameter, Tensor):
        return parameter
    what = join_names(map(repr, found)) if isinstance(found, dict) else type(found).__name__
    raise ValueError(f"{file}: holds {what or 'nothing'}, expected a tensor 'param'; {cure}")


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
