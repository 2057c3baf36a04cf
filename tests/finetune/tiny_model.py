"""Small models for tests of fine-tuning, in the forms in which models lie about, and data."""

import random
from pathlib import Path

import torch

from tokenizer.word_rule import UNCASED
from trainer.conversion.export import export_hf
from trainer.model.bert import build_model
from trainer.model.config import BertConfig, preset
from trainer.model.task_heads import Head, build_task_model

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
WORDS = ["the", "film", "is", "good", "bad", "very", "a", "cat", "dog", "sat", "ran", "."]
NEUTRAL = ["the", "film", "is", "a", "cat", "dog", "sat", "ran", "very"]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TOKENS += [letter for letter in LETTERS if letter not in TOKENS]
TOKENS += [f"##{letter}" for letter in LETTERS]
VOCAB = "".join(f"{token}\n" for token in TOKENS).encode()
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def tiny_config(**changes) -> BertConfig:
    """2 layers of 32, 40 positions."""
    sizes = {"hidden_size": 32, "num_heads": 2, "max_position_embeddings": 40}
    return preset("tiny", **{"vocab_size": len(TOKENS), **sizes, **changes})


def write_pretrained(folder: Path, seed: int = 5, **changes) -> Path:
    """The folder of a pretrained model, without dropout unless asked for."""
    config = tiny_config(**{**NO_DROPOUT, **changes})
    state = build_model(config, seed).state_dict()
    facts = {"steps": 9, "tokens_seen": 99}
    export_hf(state, config, VOCAB, str(folder), rule=UNCASED, provenance=facts)
    return folder


def write_fine_tuned(folder: Path, head: Head, seed: int = 5, **changes) -> Path:
    """The folder of a fine-tuned model whose biases are not 0."""
    config = tiny_config(**changes)
    model = build_task_model(config, head, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.linspace(-0.1, 0.1, parameter.numel()).view(parameter.shape))
    facts = {"rule": UNCASED, "provenance": {}, "head": head}
    export_hf(model.state_dict(), config, VOCAB, str(folder), **facts)
    return folder


def write_sst2(folder: Path) -> None:
    """SST-2's train.tsv, dev.tsv and test.tsv: every second word is "good" in a text that is 1."""
    draw = random.Random(0)

    def row() -> tuple[str, int]:
        label = draw.randrange(2)
        words = draw.choices(NEUTRAL, k=draw.randrange(1, 5))
        return " ".join(f"{word} {('bad', 'good')[label]}" for word in words), label

    for name, count in (("train.tsv", 48), ("dev.tsv", 20)):
        lines = ("{}\t{}\n".format(*row()) for _ in range(count))
        (folder / name).write_text("sentence\tlabel\n" + "".join(lines))
    lines = (f"{index}\t{row()[0]}\n" for index in range(7))
    (folder / "test.tsv").write_text("index\tsentence\n" + "".join(lines))
