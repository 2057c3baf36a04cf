"""A trained model as a folder or fsspec URL that Hugging Face transformers opens, and back."""

import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from pipeline.storage.folder import Folder
from tokenizer.export import tokenizer_config_json, tokenizer_json
from tokenizer.vocab import parse_vocab
from tokenizer.word_rule import WordRule
from trainer.conversion import huggingface
from trainer.conversion.model_card import CARD, is_unedited, model_card
from trainer.conversion.names import (
    CONFIG,
    PROVENANCE_KEY,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCAB,
    WEIGHTS,
)
from trainer.model.config import BertConfig
from trainer.model.task_heads import Head


def export_hf(
    state: Mapping[str, Tensor], config: BertConfig, vocab: bytes, folder: str, **facts: Any
) -> None:
    """Writes `model_files` into a folder; raises as both functions."""
    write_export(model_files(state, config, vocab, **facts), folder)


def model_files(
    state: Mapping[str, Tensor],
    config: BertConfig,
    vocab: bytes,
    *,
    rule: WordRule,
    provenance: Mapping[str, Any],
    head: Head | None = None,
) -> dict[str, bytes]:
    """Weights in float32, the tokenizer's files, the model's card and config.json, by name.

    Takes all parameters of BertForPreTraining, or with a head of BertForTask. `provenance` are JSON
    values for config.json's key "beambert" and the card, such as "steps" and "tokens_seen".
    """
    vocabulary, size = parse_vocab(vocab, VOCAB), config.vocab_size
    if len(vocabulary) != size:
        advice = "export with the vocabulary the model was trained with"
        raise ValueError(f"{VOCAB} has {len(vocabulary)} tokens, the model {size}; {advice}")
    # Under ZeRO parameters are views of one flat buffer, and safetensors wants each by itself.
    tensors = {
        name: tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
        for name, tensor in huggingface.to_hf_state(state, config, head).items()
    }
    settings = huggingface.to_hf_config(config, vocabulary.pad_id, head) | {
        PROVENANCE_KEY: dict(provenance)
    }
    longest = config.max_position_embeddings
    return {
        WEIGHTS: safetensors.torch.save(tensors, {"format": "pt"}),
        VOCAB: vocab,
        TOKENIZER: tokenizer_json(vocabulary, rule).encode(),
        TOKENIZER_CONFIG: tokenizer_config_json(vocabulary, rule, longest).encode(),
        CARD: model_card(config, provenance, rule=rule, head=head),
        CONFIG: (json.dumps(settings, indent=2, sort_keys=True) + "\n").encode(),
    }


def load_hf(folder: str) -> tuple[BertConfig, dict[str, Tensor], Head | None]:
    """Config, parameters (our names, fp32; heads may be absent) and head of a fine-tuned BERT."""
    settings, where = read_json(folder, CONFIG), f"{folder}/{CONFIG}"
    config, head = (
        huggingface.from_hf_config(settings, where),
        huggingface.head_of_hf_config(settings, where),
    )
    data = _read_file(folder, WEIGHTS)
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        says = f"{folder}/{WEIGHTS}: damaged ({error}); copy or export it again"
        raise ValueError(says) from error
    return config, huggingface.from_hf_state(tensors, config, f"{folder}/{WEIGHTS}", head), head


def read_json(folder: str, name: str) -> dict[str, Any]:
    """A JSON object of a model folder; a FileNotFoundError names what else is there."""
    return parse_settings(_read_file(folder, name), f"{folder}/{name}")


def parse_settings(data: bytes, where: str) -> dict[str, Any]:
    """Returns the JSON object in a file of a model.

    Raises:
        ValueError: The file is not a JSON object; the message names the file.
    """
    try:
        settings = json.loads(data)
    except (ValueError, RecursionError) as error:
        says = f"{where}: not JSON ({error}); copy the model again"
        raise ValueError(says) from error
    if not isinstance(settings, dict):
        kind = type(settings).__name__
        raise ValueError(f"{where}: expected a JSON object, found {kind}")  # noqa: TRY004
    return settings


def write_export(files: Mapping[str, bytes], folder: str) -> None:
    """Writes an export in the place of an earlier one of the same form; refuses any other folder.

    The card comes first, as it says whose folder this is; the settings, last, mark it as whole.
    """
    target, names = Folder(folder), list(files)
    _refuse_foreign_folder(target, names)
    target.remove(names[-1:])
    for name in sorted(names[:-1], key=lambda name: name != CARD) + names[-1:]:
        target.write(name, files[name])


def _read_file(folder: str, name: str) -> bytes:
    files = Folder(folder)
    found = files.list()
    if name not in found:
        listing = ", ".join(sorted(found)[:10]) or "nothing"
        expected = "a folder written by export, or by transformers' save_pretrained"
        says = f"no {name}, found {listing}; expected {expected} (safetensors only, in one file)"
        raise FileNotFoundError(f"{folder}: {says}")
    return files.read(name)


def _refuse_foreign_folder(folder: Folder, names: list[str]) -> None:
    """Refuses a folder that holds anything but an export of ours."""
    if folder.is_file():
        raise ValueError(f"{folder.url}: is a file; name a folder to export to")
    found = folder.list()
    foreign = sorted(found.keys() - names)
    if CARD in found and not is_unedited(folder.read(CARD)):
        foreign.append(CARD)
    is_export = CARD in found  # if there are no settings yet: its program was killed
    if names[-1] in found:
        is_export = PROVENANCE_KEY in read_json(folder.url, names[-1])
    if found and (foreign or not is_export):
        what = ", ".join(foreign[:5]) or f"{names[-1]} without the key {PROVENANCE_KEY!r}"
        says = f"holds {what}, which no export wrote; empty it or name another folder"
        raise ValueError(f"{folder.url}: {says}")
