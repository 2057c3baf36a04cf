"""A model folder of transformers as one of ONNX, which servers open without torch."""

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.storage.local import scratch_folder
from trainer.conversion.export import CONFIG, WEIGHTS

ONNX = "model.onnx"
TOLERANCE = 1e-4
"""Largest difference between onnxruntime and transformers that is left in a folder."""
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_EXAMPLE = (2, 9)  # torch.export takes axes of 1 for constants
_CHECKED = ((1, 1), (3, 16))


class _Served(torch.nn.Module):
    """A model of transformers whose outputs are plain tensors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.is_pretrained = model, hasattr(model, "cls")
        is_span = hasattr(model, "qa_outputs")
        self.outputs = ["start_logits", "end_logits"] if is_span else ["logits"]
        if self.is_pretrained:
            self.outputs += ["seq_relationship_logits", "last_hidden_state"]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The heads' logits; of a pretrained model also the last hidden states [B, S, H]."""
        named = dict(zip(_INPUTS, inputs, strict=True))
        found = self.model(**named, output_hidden_states=self.is_pretrained)
        if not self.is_pretrained:
            return tuple(found.values())
        return found.prediction_logits, found.seq_relationship_logits, found.hidden_states[-1]


def to_onnx(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of `model_files` with model.onnx in place of the weights.

    Inputs are int64 [B, S], or [B, choices, S]. onnxruntime must compute what transformers does.
    """
    import onnxruntime
    import onnxscript  # noqa: F401 (torch's exporter needs it)

    with scratch_folder(ONNX) as folder:
        served = _open(files, folder)
        data = _convert(served, folder / ONNX)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for shape in _CHECKED:
        _compare(session, served, shape)
    return {ONNX: data, **{name: each for name, each in files.items() if name != WEIGHTS}}


def _open(files: Mapping[str, bytes], folder: Path) -> _Served:
    import transformers

    for name in (CONFIG, WEIGHTS):
        (folder / name).write_bytes(files[name])
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    model = kind.from_pretrained(folder, attn_implementation="eager")
    model.config.use_cache = False
    return _Served(model.eval()).eval()


def _convert(served: _Served, path: Path) -> bytes:
    example = _inputs(served, _EXAMPLE)
    axes = {0: torch.export.Dim("batch"), example[0].ndim - 1: torch.export.Dim("length")}
    if example[0].ndim == 3:
        axes[1] = torch.export.Dim("choices")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about its own exporter
        program = torch.onnx.export(
            served,
            example,
            dynamo=True,
            dynamic_shapes=((axes,) * len(_INPUTS),),
            input_names=list(_INPUTS),
            output_names=served.outputs,
            verbose=False,
        )
    assert program is not None
    program.save(path)
    return path.read_bytes()


def _compare(session: Any, served: _Served, shape: tuple[int, int]) -> None:
    inputs = _inputs(served, shape)
    with torch.inference_mode():
        expected = served(*inputs)
    found = session.run(None, {n: each.numpy() for n, each in zip(_INPUTS, inputs, strict=True)})
    for name, theirs, ours in zip(served.outputs, found, expected, strict=True):
        if (off := float((torch.from_numpy(theirs) - ours).abs().max())) > TOLERANCE:
            says = f"differ by {off:.1e} from those of transformers, expected {TOLERANCE} at most"
            where = f"{shape[0]} sequences of {shape[1]} tokens"
            raise ValueError(f"onnxruntime's {name} of {where} {says}; nothing was written")


def _inputs(served: _Served, shape: tuple[int, int]) -> tuple[Tensor, ...]:
    """Ids, mask and types of sequences, of which the last is padded."""
    batch, length = shape[0], min(shape[1], served.model.config.max_position_embeddings)
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(0, served.model.config.vocab_size, (batch, length), generator=drawn)
    mask = torch.ones_like(ids)
    mask[-1, length // 2 + 1 :] = 0
    types = (torch.arange(length) > length // 2).long().repeat(batch, 1)
    if "MultipleChoice" in type(served.model).__name__:
        return tuple(each[:, None].repeat(1, 2, 1) for each in (ids, mask, types))
    return ids, mask, types
