"""A small exported model with a vocabulary that spells any English text."""

import dataclasses
from pathlib import Path

import torch

from tokenizer.word_rule import UNCASED
from trainer.conversion.export import export_hf
from trainer.model.bert import build_model
from trainer.model.config import BertConfig, preset

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", ".", *LETTERS]
TOKENS += [f"##{letter}" for letter in LETTERS if letter != "s"]
VOCAB = "".join(f"{token}\n" for token in TOKENS).encode()
CONFIG = preset("tiny", vocab_size=len(TOKENS), hidden_size=64, max_position_embeddings=40)


def export_lettered_model(folder: Path, seed: int = 5, **changes: object) -> Path:
    """Random weights, large enough that layers differ; `changes` are fields of BertConfig."""
    config: BertConfig = dataclasses.replace(CONFIG, **changes)
    model = build_model(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    facts = {"rule": UNCASED, "provenance": {"objective": "mlm+nsp"}}
    export_hf(model.state_dict(), config, VOCAB, str(folder), **facts)
    return folder
