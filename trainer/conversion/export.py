"""Writes a model as a folder that Hugging Face transformers opens, and reads such a folder.

The folder may be local or at an fsspec URL.
"""

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
    state: Mapping[str, Tensor],
    config: BertConfig,
    vocab: bytes,
    folder: str,
    *,
    rule: WordRule,
    provenance: Mapping[str, Any],
    head: Head | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Writes a model as a folder that transformers opens.

    Args:
        state: All parameters of the model, by our names.
        config: The configuration of the model.
        vocab: The content of vocab.txt.
        folder: A local folder or an fsspec URL. An earlier export there is replaced.
        rule: The rule by which text becomes words.
        provenance: What is known of the training, as in `OpenedModel.provenance`.
        head: The head of a fine-tuned model; None for a model that is only pretrained.
        storage_options: Options of the filesystem of a folder at a URL.

    Raises:
        ValueError: The vocabulary has another size than the model's, or the folder holds something
            else than an export.

    Example:
        ```python
        from trainer import open_model
        from trainer.conversion.export import export_hf

        opened = open_model("runs/base")
        export_hf(
            opened.state, opened.config, opened.vocab, "hf",
            rule=opened.word_rule, provenance=opened.provenance,
        )
        # AutoModelForMaskedLM.from_pretrained("hf") opens it.
        ```
    """
    files = model_files(state, config, vocab, rule=rule, provenance=provenance, head=head)
    write_export(files, folder, storage_options)


def model_files(
    state: Mapping[str, Tensor],
    config: BertConfig,
    vocab: bytes,
    *,
    rule: WordRule,
    provenance: Mapping[str, Any],
    head: Head | None = None,
) -> dict[str, bytes]:
    """Returns the contents of the files of an export by their names.

    The files are the weights in float32, the files of the tokenizer, the model card and, as the
    last entry, config.json.

    Args:
        state: All parameters of a `BertForPreTraining`, or of a `BertForTask` with the head.
        config: The configuration of the model.
        vocab: The content of vocab.txt.
        rule: The rule by which text becomes words.
        provenance: What is known of the training, such as "steps" and "tokens_seen". The JSON
            values are shown in the card, and written under the key "beambert" of config.json.
        head: The head of a fine-tuned model; None for a model that is only pretrained.

    Raises:
        ValueError: The vocabulary has another size than the model's, or is malformed.
    """
    vocabulary = parse_vocab(vocab, VOCAB)
    size = config.vocab_size
    if len(vocabulary) != size:
        advice = "export with the vocabulary the model was trained with"
        raise ValueError(f"{VOCAB} has {len(vocabulary)} tokens, the model {size}; {advice}")
    # Under ZeRO the parameters are views of one flat buffer, but safetensors refuses tensors that
    # share memory.
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


def load_hf(
    folder: str, options: Mapping[str, Any] | None = None
) -> tuple[BertConfig, dict[str, Tensor], Head | None]:
    """Reads a model from a folder that transformers or an export wrote.

    Args:
        folder: A local folder or an fsspec URL.
        options: Options of the filesystem of a folder at a URL.

    Returns:
        The configuration; the parameters under our names, fp32, on the CPU, without those of heads
        that the folder lacks; and the head of a fine-tuned model, or None.

    Raises:
        ValueError: The model is no BERT that is supported, or a file is damaged.
        FileNotFoundError: A file is missing.
    """
    settings = read_json(folder, CONFIG, options)
    where = f"{folder}/{CONFIG}"
    config = huggingface.from_hf_config(settings, where)
    head = huggingface.head_of_hf_config(settings, where)
    data = _read_file(folder, WEIGHTS, options)
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        says = f"{folder}/{WEIGHTS}: damaged ({error}); copy or export it again"
        raise ValueError(says) from error
    state = huggingface.from_hf_state(tensors, config, f"{folder}/{WEIGHTS}", head)
    return config, state, head


def read_json(folder: str, name: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the JSON object in a file of a model folder.

    Args:
        folder: A local folder or an fsspec URL.
        name: The name of the file, such as "config.json".
        options: Options of the filesystem of a folder at a URL.

    Raises:
        FileNotFoundError: There is no such file. The message lists the files that are there.
        ValueError: The file is not a JSON object.
    """
    return parse_settings(_read_file(folder, name, options), f"{folder}/{name}")


def parse_settings(data: bytes, where: str) -> dict[str, Any]:
    """Returns the JSON object in a file of a model.

    Args:
        data: The content of the file.
        where: The path or URL of the file, for messages.

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


def write_export(
    files: Mapping[str, bytes], folder: str, options: Mapping[str, Any] | None = None
) -> None:
    """Writes the files of an export into a folder. An earlier export there is replaced.

    The model card is written first. If the export is interrupted, the card shows that the files in
    the folder are from an export, so that a new export may replace them. config.json is written
    last, so a folder that has it is complete.

    Args:
        files: The contents by file name, from `model_files`. The last one is config.json.
        folder: A local folder or an fsspec URL.
        options: Options of the filesystem of a folder at a URL.

    Raises:
        ValueError: The folder is a file, or holds files that no export wrote.
    """
    target = Folder(folder, options)
    names = list(files)
    _refuse_foreign_folder(target, names)
    target.remove(names[-1:])
    for name in sorted(names[:-1], key=lambda name: name != CARD) + names[-1:]:
        target.write(name, files[name])


def _read_file(folder: str, name: str, options: Mapping[str, Any] | None) -> bytes:
    """Returns the content of a file in a model folder.

    Args:
        folder: A local folder or an fsspec URL.
        name: The name of the file.
        options: Options of the filesystem of a folder at a URL.

    Raises:
        FileNotFoundError: There is no such file. The message lists the files that are there.
    """
    files = Folder(folder, options)
    names = files.list()
    if name not in names:
        listing = ", ".join(sorted(names)[:10]) or "nothing"
        expected = "a folder written by export, or by transformers' save_pretrained"
        says = f"no {name}, found {listing}; expected {expected} (safetensors only, in one file)"
        raise FileNotFoundError(f"{folder}: {says}")
    return files.read(name)


def _refuse_foreign_folder(folder: Folder, names: list[str]) -> None:
    """Raises a ValueError unless a folder is empty or holds only an earlier export.

    An earlier export may be incomplete. Its model card must not have been edited.

    Args:
        folder: The folder to export to.
        names: The names of the files of the new export, config.json last.
    """
    if folder.is_file():
        raise ValueError(f"{folder.url}: is a file; name a folder to export to")
    present = folder.list()
    foreign = sorted(present.keys() - names)
    if CARD in present and not is_unedited(folder.read(CARD)):
        foreign.append(CARD)
    # An export that was killed has written the card, but not the settings.
    is_export = CARD in present
    if names[-1] in present:
        is_export = PROVENANCE_KEY in read_json(folder.url, names[-1], folder.options)
    if present and (foreign or not is_export):
        what = ", ".join(foreign[:5]) or f"{names[-1]} without the key {PROVENANCE_KEY!r}"
        says = f"holds {what}, which no export wrote; empty it or name another folder"
        raise ValueError(f"{folder.url}: {says}")
