"""Weights of models trained elsewhere, without unpickling code: what `--init_from` names."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pipeline.storage.folder import Folder
from pipeline.storage.hub import fetch_from_hub, is_hub_name
from tokenizer.extend import is_unused
from tokenizer.vocab import parse_vocab
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


@dataclass(frozen=True)
class InitialWeights:
    """Sizes, parameters under our names (fp32), vocab.txt, and the head of a fine-tuned model."""

    config: BertConfig
    state: dict[str, Tensor]
    vocab: bytes | None
    head: Head | None = None


def resolve_model(name: str) -> str:
    """The folder of a model: the name itself, or where a model of the Hub by that name was put."""
    if not is_hub_name(name):
        return name
    folder = fetch_from_hub(name, (CARD, CONFIG, VOCAB, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS))
    if not (folder / WEIGHTS).exists():
        folder = fetch_from_hub(name, (CONFIG, VOCAB, PICKLED_WEIGHTS))
    return str(folder)


def read_initial_weights(folder: str) -> InitialWeights:
    """Reads a model folder, local or an fsspec URL; refuses what is no BERT, or a pickle."""
    files = Folder(folder)
    names = set(files.list())
    vocab = files.read(VOCAB) if VOCAB in names else None
    if CONFIG in names and WEIGHTS in names:
        config, state, head = load_hf(folder)
        return InitialWeights(config, state, vocab, head)
    if CONFIG in names and LATEST in names:
        return InitialWeights(*load_universal(folder), vocab)
    if CONFIG in names and PICKLED_WEIGHTS in names:
        raise ValueError(
            f"{folder}/{PICKLED_WEIGHTS} is a pickle, which can run any code when it is read; if "
            "you trust it, write safetensors beside it: "
            'python -c "from transformers import BertForPreTraining as Bert; '
            f'Bert.from_pretrained({folder!r}).save_pretrained({folder!r})"'
        )
    indexes = [name for name in names if ".ckpt" in name and name.endswith(".index")]
    if GOOGLE_CONFIG in names and len(indexes) == 1:
        return InitialWeights(*load_google(folder, indexes[0].removesuffix(".index")), vocab)
    listing = ", ".join(sorted(names)[:10]) or "nothing"
    raise FileNotFoundError(f"{folder} holds {listing}; {expected_files()}")


def extend_rows(found: InitialWeights, vocab: bytes, folder: str) -> tuple[InitialWeights, int]:
    """The weights for a vocab.txt that extends theirs, and how many of its pieces are new.

    Old pieces keep their rows to the bit. A new one's row of the embeddings, and its bias in the
    masked-LM head, begin as the means of those of the pieces that the old vocabulary cuts it into.
    """
    assert found.vocab is not None
    old = parse_vocab(found.vocab, f"{folder}/{VOCAB}")
    vocabulary = parse_vocab(vocab, "the dataset's vocabulary")
    kept = list(zip(old.tokens, vocabulary.tokens, strict=False))
    moved = [(before, after) for before, after in kept if before != after and not is_unused(before)]
    if moved or len(vocabulary) < len(old):
        shown = f"{len(old)} lines, there {len(vocabulary)}"
        if moved:
            shown = "{!r} of it is {!r} there".format(*moved[0])
        raise ValueError(
            f"{folder}/{VOCAB} differs from the dataset's vocabulary, so ids mean other words "
            f"({shown}); build the dataset with --vocab or --extend of that file, or leave "
            "init_from out"
        )
    new = [index for index, (before, after) in enumerate(kept) if before != after]
    new += range(len(old), len(vocabulary))
    if not new:
        return found, 0
    tokens, state = vocabulary.tokens, dict(found.state)
    pieces = {index: [old.ids[piece] for piece in split_piece(tokens[index], old)] for index in new}
    for name in _ROWS_BY_TOKEN & state.keys():
        rows = state[name][: len(old)]
        state[name] = torch.cat([rows, rows.new_zeros(len(tokens) - len(old), *rows.shape[1:])])
        for index in new:
            state[name][index] = rows[pieces[index]].mean(0)
    config = replace(found.config, vocab_size=len(vocabulary))
    return replace(found, config=config, state=state), len(new)


def hash_state(state: Mapping[str, Tensor]) -> str:
    """Hex digest of parameters by name."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(f"{name} {tuple(state[name].shape)}\n".encode())
        digest.update(state[name].contiguous().numpy().tobytes())
    return digest.hexdigest()
