"""Reads the weights of models that were trained elsewhere, without unpickling code.

`--init_from` names such a model, and every tool that opens a model reads it here.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pipeline.storage.folder import Folder
from pipeline.storage.hub import fetch_from_hub, is_hub_name
from tokenizer.extend import is_unused
from tokenizer.vocab import Vocabulary, parse_vocab
from tokenizer.wordpiece import split_piece
from trainer.conversion.export import load_hf
from trainer.conversion.google import load_google
from trainer.conversion.model_card import CARD
from trainer.conversion.names import (
    CONFIG,
    GOOGLE_CONFIG,
    LATEST,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCAB,
    WEIGHTS,
    expected_files,
)
from trainer.conversion.universal import load_universal
from trainer.model.config import BertConfig
from trainer.model.task_heads import Head

PICKLED_WEIGHTS = "pytorch_model.bin"
_ROWS_BY_TOKEN = frozenset({"bert.embeddings.word.weight", "mlm_head.bias"})
"""Parameters with one row, or one value, for each token of the vocabulary."""


@dataclass(frozen=True)
class InitialWeights:
    """A model that was trained elsewhere.

    Attributes:
        config: The configuration of the model.
        state: The parameters under our names, fp32, on the CPU.
        vocab: The content of vocab.txt; None if the folder has none.
        head: The head of a fine-tuned model; None for a model that is only pretrained.
    """

    config: BertConfig
    state: dict[str, Tensor]
    vocab: bytes | None
    head: Head | None = None


def resolve_model(name: str) -> str:
    """Returns the folder of a model. A model of the Hugging Face Hub is downloaded first.

    Args:
        name: A folder, an fsspec URL, or the name of a model of the Hub.
    """
    if not is_hub_name(name):
        return name
    folder = fetch_from_hub(name, (CARD, CONFIG, VOCAB, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS))
    if not (folder / WEIGHTS).exists():
        folder = fetch_from_hub(name, (CONFIG, VOCAB, PICKLED_WEIGHTS))
    return str(folder)


def read_initial_weights(folder: str, options: Mapping[str, Any] | None = None) -> InitialWeights:
    """Reads a model folder of Hugging Face, DeepSpeed (universal checkpoint) or Google.

    Args:
        folder: A local folder or an fsspec URL.
        options: Options of the filesystem of a folder at a URL.

    Raises:
        ValueError: The model is no BERT that is supported, is damaged, or has pickled weights.
        FileNotFoundError: The folder holds no model.
    """
    files = Folder(folder, options)
    names = set(files.list())
    vocab = files.read(VOCAB) if VOCAB in names else None
    if CONFIG in names and WEIGHTS in names:
        config, state, head = load_hf(folder, options)
        return InitialWeights(config, state, vocab, head)
    if CONFIG in names and LATEST in names:
        return InitialWeights(*load_universal(folder, options), vocab)
    if CONFIG in names and PICKLED_WEIGHTS in names:
        raise ValueError(
            f"{folder}/{PICKLED_WEIGHTS} is a pickle, which can run any code when it is read; if "
            "you trust it, write safetensors beside it: "
            'python -c "from transformers import BertForPreTraining as Bert; '
            f'Bert.from_pretrained({folder!r}).save_pretrained({folder!r})"'
        )
    indexes = [name for name in names if ".ckpt" in name and name.endswith(".index")]
    if GOOGLE_CONFIG in names and len(indexes) == 1:
        name = indexes[0].removesuffix(".index")
        return InitialWeights(*load_google(folder, name, options), vocab)
    listing = ", ".join(sorted(names)[:10]) or "nothing"
    raise FileNotFoundError(f"{folder} holds {listing}; {expected_files()}")


def extend_rows(found: InitialWeights, vocab: bytes, folder: str) -> tuple[InitialWeights, int]:
    """Extends a model's weights to a larger vocabulary.

    Tokens of the old vocabulary keep their embeddings to the bit. The old vocabulary splits a new
    token into several pieces. The embedding of the new token is the mean of the embeddings of these
    pieces, and its bias in the masked language model head is the mean of their biases.

    Args:
        found: The model, which must have a vocab.txt.
        vocab: The content of the larger vocab.txt. It begins with the tokens of the model's
            vocab.txt, except that new tokens may replace unused ones such as [unused7].
        folder: The folder of the model, for messages.

    Returns:
        The model with weights for the new vocabulary, and the number of new tokens. The model is
        `found` itself if there are none.

    Raises:
        ValueError: The new vocabulary does not extend the model's.
    """
    assert found.vocab is not None
    old = parse_vocab(found.vocab, f"{folder}/{VOCAB}")
    vocabulary = parse_vocab(vocab, "the dataset's vocabulary")
    new_ids = _new_ids(old, vocabulary, folder)
    if not new_ids:
        return found, 0

    tokens = vocabulary.tokens
    state = dict(found.state)
    piece_ids = {
        new_id: [old.ids[piece] for piece in split_piece(tokens[new_id], old)] for new_id in new_ids
    }
    for name in _ROWS_BY_TOKEN & state.keys():
        rows = state[name][: len(old)]
        state[name] = torch.cat([rows, rows.new_zeros(len(tokens) - len(old), *rows.shape[1:])])
        for new_id in new_ids:
            state[name][new_id] = rows[piece_ids[new_id]].mean(0)
    config = replace(found.config, vocab_size=len(vocabulary))
    return replace(found, config=config, state=state), len(new_ids)


def _new_ids(old: Vocabulary, new: Vocabulary, folder: str) -> list[int]:
    """Returns the ids of the tokens of a vocabulary that another one lacks, ascending.

    A new token may follow the old vocabulary, or replace an unused token such as [unused7].

    Args:
        old: The vocabulary of the model.
        new: The vocabulary of the dataset.
        folder: The folder of the model, for messages.

    Raises:
        ValueError: The new vocabulary is shorter than the old one, or replaces a token in use.
    """
    both = list(zip(old.tokens, new.tokens, strict=False))
    moved = [(before, after) for before, after in both if before != after and not is_unused(before)]
    if moved or len(new) < len(old):
        difference = f"{len(old)} lines, there {len(new)}"
        if moved:
            before, after = moved[0]
            difference = f"{before!r} of it is {after!r} there"
        raise ValueError(
            f"{folder}/{VOCAB} differs from the dataset's vocabulary, so ids mean other words "
            f"({difference}); build the dataset with --vocab or --extend of that file, or leave "
            "init_from out"
        )
    replaced = [index for index, (before, after) in enumerate(both) if before != after]
    return [*replaced, *range(len(old), len(new))]


def hash_state(state: Mapping[str, Tensor]) -> str:
    """Returns the SHA-256 of parameters, their names and their shapes, in hexadecimal digits."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(f"{name} {tuple(state[name].shape)}\n".encode())
        digest.update(state[name].contiguous().numpy().tobytes())
    return digest.hexdigest()
