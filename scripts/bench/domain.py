"""What extending a vocabulary is worth: a model trained on general text goes on with a domain's, five ways.

| way           | vocabulary | rows of new pieces begin    | goes on with
|
|---------------|------------|-----------------------------|-----------------------------------------------|
| plain         | as it was  | (none)                      | the domain's text
| | random        | extended   | as new                      | the domain's text
| | mean          | extended   | as the mean of their pieces | the domain's text
| | plain-replay  | as it was  | (none)                      | the domain's text and general text,
--weights | | replay        | extended   | as the mean of their pieces | the domain's text and
general text, --weights |

    python -m scripts.bench.domain --general "novels/*.zst" --domain "wiki/*.zst" --held_out
    wiki_8.zst --work FOLDER

Everything is done by the programs' own commands, and finished steps are not done again, so that
another --peak_lr goes on from the same model. The model is BERT-tiny, whose losses on held-out
instances are read after a tenth of the steps and at the end. A loss a token is no measure across
vocabularies: it is also given a word, as the loss a token times the tokens that a word of held-out
text takes. Each vocabulary has masks of its own, so that two losses of different vocabularies
differ by chance too: the same model on 47,000 tokens, masked with another seed, by 0.011 nats a
word.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from scripts.bench.measured import iterate_documents, print_result
from tokenizer.extend import tokens_a_word
from tokenizer.vocab import Vocabulary, parse_vocab
from tokenizer.words import count_words

RECIPE = "configs/pretrain/bert-tiny-demo.yaml"
WAYS = {
    "plain": ("hf", "old", False),
    "random": ("random-hf", "new", False),
    "mean": ("hf", "new", False),
    "plain-replay": ("hf", "old", True),
    "replay": ("hf", "new", True),
}
"""Where a way begins, its vocabulary, and whether it reads general text too."""
WORDS = "bert.embeddings.word_embeddings.weight"
BIAS = "cls.predictions.bias"


def main() -> None:
    """Builds, trains, goes on and prints the losses."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--general", required=True, nargs="+")
    parser.add_argument(
        "--domain", required=True, nargs="+", help="text to go on with, without the held-out files"
    )
    parser.add_argument(
        "--held_out", required=True, nargs="+", help="text of the domain of which words are counted"
    )
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=6_000, help="steps on general text")
    parser.add_argument("--more", type=int, default=2_000, help="steps that each way goes on")
    parser.add_argument(
        "--peak_lr", type=float, default=1e-3, help="that of going on; the recipe begins with 2e-3"
    )
    parser.add_argument(
        "--weights",
        type=int,
        nargs=2,
        default=[1, 2],
        help="shares of the domain's text and of general text in replay",
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--vocab_size", type=int, default=8_000)
    parser.add_argument("--extended_size", type=int, default=12_000)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    work: Path = asked.work
    work.mkdir(parents=True, exist_ok=True)
    build(asked, "general-old", asked.general, "--vocab_size", asked.vocab_size)
    old_file = work / "general-old/vocab.txt"
    size = ("--vocab_size", asked.extended_size)
    run(
        "pipeline",
        "vocab",
        "--input",
        *asked.domain,
        "--output",
        work / "extended",
        "--extend",
        old_file,
        *size,
    )
    new_file = work / "extended/vocab.txt"
    for folder, text, vocab in [
        ("general-new", asked.general, new_file),
        ("domain-old", asked.domain, old_file),
        ("domain-new", asked.domain, new_file),
    ]:
        build(asked, folder, text, "--vocab", vocab)
    train(work / "base", asked.steps, [work / "general-old"])
    run("trainer", "export", work / "base", "--output", work / "hf")
    old, new = (parse_vocab(path.read_bytes(), str(path)) for path in (old_file, new_file))
    write_random_rows(work / "hf", work / "random-hf", old, new)
    texts: dict[str, Sequence[str]] = {"domain": asked.held_out, "general": asked.general}
    word_tokens = {
        name: count_tokens(patterns, {"old": old, "new": new}) for name, patterns in texts.items()
    }
    rows = [
        {
            "way": "before",
            "step": 0,
            "text": text,
            **measure(work, work / "hf", f"{text}-old", word_tokens[text]["old"]),
        }
        for text in texts
    ]
    for way in asked.ways:
        output, words = go_on(asked, way), WAYS[way][1]
        for step in (asked.more // 10, asked.more):
            rows += [
                {"way": way, "step": step, "text": name}
                | measure(work, f"{output}@{step}", f"{name}-{words}", word_tokens[name][words])
                for name in texts
            ]
    config = {
        name: value
        for name, value in vars(asked).items()
        if name not in ("work", "general", "domain", "held_out")
    }
    print_result("domain", config, ("torch", "deepspeed"), tokens_a_word=word_tokens, losses=rows)


def run(*words: object) -> None:
    """One of the programs' commands; its output goes where this one's errors go."""
    subprocess.run([sys.executable, "-m", *map(str, words)], check=True, stdout=sys.stderr)


def build(asked: argparse.Namespace, name: str, text: Sequence[str], *flags: object) -> None:
    """A dataset under the working folder."""
    places = ("--input", *text, "--output", asked.work / name, "--workers", asked.workers)
    run(
        "pipeline",
        "build",
        *places,
        "--seq_lens",
        32,
        "--passes",
        3,
        "--validation_fraction",
        0.02,
        *flags,
    )


def train(output: Path, steps: int, data: Sequence[object], *flags: object) -> None:
    """A run to its end, with a checkpoint after every tenth of it."""
    often = (
        "--checkpoint.interval",
        steps // 10,
        "--checkpoint.keep",
        20,
        "--validation.interval",
        steps,
    )
    run(
        "trainer",
        "pretrain",
        "--config",
        RECIPE,
        "--data",
        *data,
        "--output",
        output,
        "--steps",
        steps,
        *often,
        *flags,
    )


def go_on(asked: argparse.Namespace, way: str) -> Path:
    """The run of a way, to its end."""
    start, words, with_general = WAYS[way]
    name, data = f"{way}-{asked.peak_lr}", [f"{asked.work}/domain-{words}"]
    if with_general:
        domain, general = asked.weights
        name = f"{name}-{domain}-{general}"
        data = [f"{asked.work}/domain-{words}:{domain}", f"{asked.work}/general-{words}:{general}"]
    train(
        asked.work / name,
        asked.more,
        data,
        "--init_from",
        asked.work / start,
        "--peak_lr",
        asked.peak_lr,
    )
    return Path(asked.work / name)


def write_random_rows(source: Path, output: Path, old: Vocabulary, new: Vocabulary) -> None:
    """A copy of an export with the new vocabulary, whose new rows are drawn as those of a new model."""
    if output.exists():
        return
    shutil.copytree(source, output.with_suffix(".part"), dirs_exist_ok=True)
    folder = output.with_suffix(".part")
    tensors = load_file(folder / "model.safetensors")
    rows = tensors[WORDS]
    drawn = (
        torch.randn(len(new), rows.shape[1], generator=torch.Generator().manual_seed(0))
        * rows.std()
    )
    kept = torch.tensor(
        [index for index, token in enumerate(old.tokens) if new.tokens[index] == token]
    )
    drawn[kept] = rows[kept]
    tensors[WORDS] = drawn
    bias = torch.zeros(len(new))
    bias[kept] = tensors[BIAS][kept]
    tensors[BIAS] = bias
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "vocab.txt").write_text(new.to_text())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": len(new)}))
    folder.rename(output)


def count_tokens(patterns: Sequence[str], vocabularies: dict[str, Vocabulary]) -> dict[str, float]:
    """Mean tokens of a word of a text, by vocabulary."""
    counts = count_words(iterate_documents(patterns), lower_case=True)
    words, numbers = list(counts), list(counts.values())
    return {
        name: round(tokens_a_word(each, words, numbers, True), 4)
        for name, each in vocabularies.items()
    }


def measure(work: Path, model: object, data: str, tokens: float) -> dict[str, Any]:
    """Losses of a model on the held-out instances of a dataset."""
    place = work / "found.json"
    run("trainer", "evaluate", "--model", model, "--data", work / data, "--output", place)
    found = json.loads(place.read_text())
    loss = found["mlm_loss"]
    return {
        "mlm_loss": round(loss, 4),
        "loss_a_word": round(loss * tokens, 4),
        "masked": found["masked"],
    }


if __name__ == "__main__":
    main()
