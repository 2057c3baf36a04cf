"""Fine-tuning with ours and a transformers loop: the same weights, items, batches and settings.

    python -m scripts.bench.finetune --model HF_OR_RUN --train train.tsv --validation dev.tsv
    [--task sst2 --seeds 5]

The other loop trains transformers' BertForSequenceClassification, padded to the longest of each
batch, with torch's AdamW, BERT's two groups, clipping and the same learning rates. Per seed, which
draws new weights and order, both begin with the same parameters and take turns in who goes first;
one thread. Texts are encoded once for both, outside of what is measured. One JSON line: metric of
both (mean, standard error), their difference seed by seed, the largest difference of a step's
losses, and real tokens of the training per CPU second.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from scripts.bench.measured import cpu_seconds, print_result, summarize
from scripts.bench.train_step import torch_adamw
from scripts.checkout import make_parser
from trainer.conversion.huggingface import to_hf_config, to_hf_state
from trainer.finetune.batches import Recipe, iterate_steps, shuffled_order
from trainer.finetune.prepare import Prepared, prepare_data, start_model
from trainer.finetune.run import score_file
from trainer.finetune.settings import FinetuneSettings
from trainer.finetune.task import Item, Output
from trainer.finetune.training import train_task
from trainer.model.task_heads import IGNORED, BertForTask
from trainer.optim.settings import Schedule
from trainer.process.ranks import Ranks, start_ranks, stop_ranks

PACKAGES = ("torch", "transformers", "deepspeed")


@dataclass(frozen=True)
class Trained:
    """The main metric on the validation file, the loss of every step, CPU seconds of training."""

    score: float
    losses: list[float]
    seconds: float


@dataclass(frozen=True)
class Bench:
    """What all runs share: the encoded files, the items to train on, this process alone."""

    settings: FinetuneSettings
    prepared: Prepared
    items: list[Item]
    ranks: Ranks

    def start(self, seed: int) -> BertForTask:
        """Returns the model that both sides begin with."""
        prepared = self.prepared
        return start_model(prepared.opened, prepared.config, prepared.head, seed, keeps_head=False)

    def train_ours(self, recipe: Recipe) -> Trained:
        """Trains and scores our side, by the code of the command `finetune`."""
        losses: list[float] = []
        engines: list[Any] = []

        def train() -> None:
            model = self.start(recipe.seed)
            engines.append(
                train_task(model, self.items, recipe, self.settings, self.ranks, losses.append)
            )

        seconds = cpu_seconds(train)
        prepared = self.prepared
        file = prepared.files["validation"][0]
        metrics = score_file(engines[0].module, file, prepared, self.ranks)
        engines[0].destroy()
        return Trained(metrics[self.prepared.task.main_metric], losses, seconds)

    def train_theirs(self, recipe: Recipe) -> Trained:
        """Trains and scores the other side: transformers' model in a plain loop."""
        losses: list[float] = []
        models: list[Any] = []
        seconds = cpu_seconds(lambda: models.append(self._loop(recipe, losses)))
        file = self.prepared.files["validation"][0]
        task = self.prepared.task
        outputs = predict(models[0].eval(), file.items, recipe.global_batch)
        predictions = task.decode(file.examples, file.items, outputs, self.prepared.head.labels)
        return Trained(task.score(file.examples, predictions)[task.main_metric], losses, seconds)

    def _loop(self, recipe: Recipe, losses: list[float]) -> Any:
        model = twin_of(self.start(recipe.seed)).train()
        optimizer = torch_adamw(model, lr=0.0)
        steps = recipe.num_steps(len(self.items))
        schedule = Schedule(steps, round(self.settings.warmup_fraction * steps), recipe.peak_lr)
        stream = iterate_steps(self.items, recipe, 1, self.settings.micro_tokens)
        for index, step in enumerate(stream):
            for group in optimizer.param_groups:
                group["lr"] = schedule.learning_rate(index)
            loss = model(**pad_items(step.items), labels=pad_labels(step.items)).loss
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return model


def main() -> None:
    """Prints the comparison."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    ranks = start_ranks()
    try:
        bench = open_bench(arguments, ranks)
        grid = arguments.global_batch, arguments.peak_lr, arguments.epochs
        pairs = [run_both(bench, Recipe(*grid, seed)) for seed in range(arguments.seeds)]
    finally:
        stop_ranks()
    tokens = arguments.epochs * sum(len(item.sequences[0].input_ids) for item in bench.items)
    print_result("finetune", vars(arguments), PACKAGES, **compare(pairs, tokens))


def parse_arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", required=True, help="a run, RUN@STEP or a model folder")
    parser.add_argument("--train", required=True)
    parser.add_argument("--validation", required=True)
    parser.add_argument("--task", default="sst2", help="a task of one class a text or pair")
    parser.add_argument(
        "--max_train", type=int, default=4_000, help="items to train on, drawn once for all seeds"
    )
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--global_batch", type=int, default=32)
    parser.add_argument("--peak_lr", type=float, default=3e-4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--dropout", type=float, help="the model's own where it is not given")
    return parser.parse_args()


def open_bench(arguments: argparse.Namespace, ranks: Ranks) -> Bench:
    """Opens the files and the model.

    Raises:
        ValueError: The task is not a classification of texts or pairs.
    """
    settings = FinetuneSettings(
        task=arguments.task,
        model=arguments.model,
        train=[arguments.train],
        validation=[arguments.validation],
        output="",
        seq_len=arguments.seq_len,
        dropout=arguments.dropout,
        precision="fp32",
    )
    prepared = prepare_data(settings)
    if prepared.head.kind != "classification":
        raise ValueError(
            f"task {arguments.task} is of kind {prepared.head.kind}; this compares classification"
        )
    items = prepared.train_items
    chosen = [items[index] for index in shuffled_order(len(items), 0, 0)[: arguments.max_train]]
    return Bench(settings, prepared, chosen, ranks)


def run_both(bench: Bench, recipe: Recipe) -> tuple[Trained, Trained]:
    """Trains both sides with one seed. The other side is trained first if the seed is odd."""
    sides = {"ours": bench.train_ours, "theirs": bench.train_theirs}
    found = {name: sides[name](recipe) for name in sorted(sides, reverse=recipe.seed % 2 == 1)}
    return found["ours"], found["theirs"]


def compare(pairs: Sequence[tuple[Trained, Trained]], tokens: int) -> dict[str, Any]:
    """Returns the numbers to report about all seeds."""
    differences = [ours.score - theirs.score for ours, theirs in pairs]
    steps = [
        pair for ours, theirs in pairs for pair in zip(ours.losses, theirs.losses, strict=True)
    ]
    return {
        "real_tokens": tokens,
        "ours": mean_and_error([ours.score for ours, _ in pairs]),
        "transformers": mean_and_error([theirs.score for _, theirs in pairs]),
        "ours_minus_transformers": mean_and_error(differences),
        "largest_loss_difference": max(abs(one - other) for one, other in steps),
        "real_tokens_per_cpu_second": {
            "ours": summarize([tokens / ours.seconds for ours, _ in pairs], 0),
            "transformers": summarize([tokens / theirs.seconds for _, theirs in pairs], 0),
        },
        "ours_over_transformers": summarize(
            [theirs.seconds / ours.seconds for ours, theirs in pairs], 2
        ),
    }


def mean_and_error(values: Sequence[float]) -> dict[str, float]:
    """Returns the mean over seeds and its standard error, which is NaN for a single seed."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if values[1:] else math.nan
    return {
        "mean": round(statistics.fmean(values), 5),
        "standard_error": round(error, 5),
        "seeds": len(values),
    }


def twin_of(model: BertForTask) -> Any:
    """Returns transformers' classifier of texts or tokens, with the same weights as `model`."""
    settings = transformers.BertConfig(**to_hf_config(model.config, 0, model.head))
    kind = "Token" if model.head.kind == "tokens" else "Sequence"
    twin = getattr(transformers, f"BertFor{kind}Classification")(settings)
    twin.load_state_dict(to_hf_state(model.state_dict(), model.config, model.head))
    return twin


def pad_items(items: Sequence[Item]) -> dict[str, Tensor]:
    """Returns rows [B, S] for transformers, padded to the longest item."""
    longest = max(len(item.sequences[0].input_ids) for item in items)
    names = ("input_ids", "token_type_ids", "attention_mask")
    rows = {name: torch.zeros((len(items), longest), dtype=torch.int64) for name in names}
    for row, item in enumerate(items):
        [sequence] = item.sequences
        length = len(sequence.input_ids)
        rows["input_ids"][row, :length] = torch.from_numpy(sequence.input_ids.astype(np.int64))
        rows["token_type_ids"][row, sequence.segment_a_length : length] = 1
        rows["attention_mask"][row, :length] = 1
    return rows


def pad_labels(items: Sequence[Item]) -> Tensor:
    """Classes [B], or of tokens [B, S] padded to the longest."""
    labels = [torch.from_numpy(item.labels) for item in items]
    if all(len(each) == 1 for each in labels):
        return torch.cat(labels)
    return torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORED)


@torch.inference_mode()
def predict(model: Any, items: Sequence[Item], global_batch: int) -> list[Output]:
    """Logits of each item, or of each of its tokens."""
    outputs: list[Output] = []
    for start in range(0, len(items), global_batch):
        batch = items[start : start + global_batch]
        logits = model(**pad_items(batch)).logits.numpy()
        for item, rows in zip(batch, logits, strict=True):
            outputs.append(rows[: len(item.sequences[0].input_ids)] if rows.ndim > 1 else rows)
    return outputs


if __name__ == "__main__":
    main()
