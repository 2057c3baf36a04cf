"""Weights of models trained elsewhere: of Hugging Face, of exports, and of Google's releases.

Nothing is unpickled unless the caller allows it.
"""

import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pipeline.storage.folder import Folder
from trainer.conversion.export import CONFIG, GOOGLE_CONFIG, VOCAB, WEIGHTS, load_hf, read_export_file, read_json
from trainer.conversion.google import from_google_tensors, google_names
from trainer.conversion.huggingface import from_hf_config, from_hf_state
from trainer.conversion.tensor_bundle import TensorBundle
from trainer.model.config import BertConfig

PICKLED_WEIGHTS = "pytorch_model.bin"


@dataclass(frozen=True)
class InitialWeights:
    """What a folder holds.

    Attributes:
        config: Sizes of the model.
        state: Parameters under our names, fp32; heads that the folder lacks are absent.
        vocab: vocab.txt, where there is one.
    """

    config: BertConfig
    state: dict[str, Tensor]
    vocab: bytes | None


def read_initial_weights(folder: str, *, allow_pickle: bool = False) -> InitialWeights:
    """Reads a model folder, local or an fsspec URL.

    Raises:
        FileNotFoundError: It holds no model that is known; says what it holds.
        ValueError: Damaged, not a BERT as pretrained here, or a pickle without permission.
    """
    files = Folder(folder)
    names = set(files.list())
    vocab = files.read(VOCAB) if VOCAB in names else None
    if CONFIG in names and WEIGHTS in names:
        return InitialWeights(*load_hf(folder), vocab)
    if CONFIG in names and PICKLED_WEIGHTS in names:
        return InitialWeights(*_load_pickled(folder, allow_pickle), vocab)
    indexes = sorted(name for name in names if name.endswith(".ckpt.index") or (".ckpt-" in name and ".index" in name))
    if GOOGLE_CONFIG in names and len(indexes) == 1:
        return InitialWeights(*_load_google(folder, indexes[0].removesuffix(".index")), vocab)
    listing = ", ".join(sorted(names)[:10]) or "nothing"
    raise FileNotFoundError(
        f"{folder} holds {listing}; expected {CONFIG} with {WEIGHTS} (Hugging Face), or {GOOGLE_CONFIG} with one "
        "checkpoint NAME.ckpt.index and NAME.ckpt.data-... (Google)"
    )


def hash_state(state: Mapping[str, Tensor]) -> str:
    """Hex digest of parameters by name."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(f"{name} {tuple(state[name].shape)}\n".encode())
        digest.update(state[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _load_pickled(folder: str, allow_pickle: bool) -> tuple[BertConfig, dict[str, Tensor]]:
    where = f"{folder}/{PICKLED_WEIGHTS}"
    if not allow_pickle:
        raise ValueError(
            f"{where} is a pickle, which can run any code when it is read; save the model again as safetensors, or "
            "give --init_from_pickle true if you trust the file"
        )
    config = from_hf_config(read_json(folder, CONFIG), f"{folder}/{CONFIG}")
    try:
        tensors = torch.load(io.BytesIO(read_export_file(folder, PICKLED_WEIGHTS)), "cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"{where}: not a file of tensors alone ({error}); it is not read") from error
    return config, from_hf_state(tensors, config, where)


def _load_google(folder: str, name: str) -> tuple[BertConfig, dict[str, Tensor]]:
    config = from_hf_config(read_json(folder, GOOGLE_CONFIG), f"{folder}/{GOOGLE_CONFIG}")
    files = Folder(folder)
    size_of = lru_cache(maxsize=None)(files.size)

    def read(suffix: str, span: tuple[int, int] | None) -> bytes:
        file = name + suffix
        if span is not None and span[1] > size_of(file):
            raise ValueError(
                f"{files.locate(file)}: ends before byte {span[1]}, where a tensor of the index ends; copy it again"
            )
        return files.read(file) if span is None else files.read_range(file, *span)

    bundle = TensorBundle(f"{folder}/{name}", read)
    known = google_names(config)
    tensors: Mapping[str, Any] = {each: bundle.read(each) for each in known.values() if each in bundle.names}
    return config, from_google_tensors(tensors, bundle.names, config, bundle.where)
