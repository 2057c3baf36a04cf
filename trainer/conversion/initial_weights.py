"""Weights of models trained elsewhere: of Hugging Face, of exports, and of Google's releases.

Nothing is unpickled.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pipeline.storage.folder import Folder
from tokenizer.extend import is_unused
from tokenizer.vocab import parse_vocab
from tokenizer.wordpiece import split_piece
from trainer.conversion.export import (
    CONFIG,
    GOOGLE_CONFIG,
    VOCAB,
    WEIGHTS,
    load_hf,
    read_json,
)
from trainer.conversion.google import from_google_tensors, google_names
from trainer.conversion.huggingface import from_hf_config
from trainer.conversion.tensor_bundle import TensorBundle
from trainer.model.config import BertConfig

PICKLED_WEIGHTS = "pytorch_model.bin"
_ROWS_BY_TOKEN = frozenset({"bert.embeddings.word.weight", "mlm_head.bias"})


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


def read_initial_weights(folder: str) -> InitialWeights:
    """Reads a model folder, local or an fsspec URL.

    Raises:
        FileNotFoundError: It holds no model that is known; says what it holds.
        ValueError: Damaged, not a BERT as pretrained here, or a pickle.
    """
    files = Folder(folder)
    names = set(files.list())
    vocab = files.read(VOCAB) if VOCAB in names else None
    if CONFIG in names and WEIGHTS in names:
        return InitialWeights(*load_hf(folder), vocab)
    if CONFIG in names and PICKLED_WEIGHTS in names:
        raise ValueError(
            f"{folder}/{PICKLED_WEIGHTS} is a pickle, which can run any code when it is read; if you trust it, write "
            f'safetensors beside it: python -c "from transformers import BertForPreTraining as Bert; '
            f'Bert.from_pretrained({folder!r}).save_pretrained({folder!r})"'
        )
    indexes = sorted(
        name
        for name in names
        if name.endswith(".ckpt.index") or (".ckpt-" in name and ".index" in name)
    )
    if GOOGLE_CONFIG in names and len(indexes) == 1:
        return InitialWeights(*_load_google(folder, indexes[0].removesuffix(".index")), vocab)
    listing = ", ".join(sorted(names)[:10]) or "nothing"
    raise FileNotFoundError(
        f"{folder} holds {listing}; expected {CONFIG} with {WEIGHTS} (Hugging Face), or {GOOGLE_CONFIG} with one "
        "checkpoint NAME.ckpt.index and NAME.ckpt.data-... (Google)"
    )


def extend_rows(found: InitialWeights, vocab: bytes, folder: str) -> tuple[InitialWeights, int]:
    """The weights for a vocab.txt that extends theirs, and how many of its pieces are new.

    Old pieces keep their rows to the bit. A new one's row of the embeddings, and its bias in the
    masked-LM head, begin as the means of those of the pieces that the old vocabulary cuts it into.

    Raises:
        ValueError: The vocabulary is not theirs, extended: another piece than an [unusedN] has gone
            or moved.
    """
    assert found.vocab is not None
    old, vocabulary = (
        parse_vocab(found.vocab, f"{folder}/{VOCAB}"),
        parse_vocab(vocab, "the dataset's vocabulary"),
    )
    kept = list(zip(old.tokens, vocabulary.tokens, strict=False))
    moved = [(before, after) for before, after in kept if before != after and not is_unused(before)]
    if moved or len(vocabulary) < len(old):
        shown = (
            f"{moved[0][0]!r} of it is {moved[0][1]!r} there"
            if moved
            else f"{len(old)} lines, there {len(vocabulary)}"
        )
        raise ValueError(
            f"{folder}/{VOCAB} differs from the dataset's vocabulary, so ids mean other words ({shown}); build the "
            "dataset with --vocab or --extend of that file, or leave init_from out"
        )
    new = [index for index, (before, after) in enumerate(kept) if before != after]
    new += range(len(old), len(vocabulary))
    if not new:
        return found, 0
    state = dict(found.state)
    pieces = {
        index: [old.ids[piece] for piece in split_piece(vocabulary.tokens[index], old)]
        for index in new
    }
    for name in _ROWS_BY_TOKEN & state.keys():
        rows = state[name][: len(old)]
        state[name] = torch.cat([rows, rows.new_zeros(len(vocabulary) - len(old), *rows.shape[1:])])
        for index in new:
            state[name][index] = rows[pieces[index]].mean(0)
    return InitialWeights(
        replace(found.config, vocab_size=len(vocabulary)), state, found.vocab
    ), len(new)


def hash_state(state: Mapping[str, Tensor]) -> str:
    """Hex digest of parameters by name."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(f"{name} {tuple(state[name].shape)}\n".encode())
        digest.update(state[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


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
    tensors: Mapping[str, Any] = {
        each: bundle.read(each) for each in known.values() if each in bundle.names
    }
    return config, from_google_tensors(tensors, bundle.names, config, bundle.where)
