"""One fine-tuning run and the outputs of a model: what happens between items and numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.start import start_engine
from trainer.engine.train_step import seed_dropout
from trainer.finetune.batches import Step, TaskBatch, cut_items, iterate_steps, pack_items
from trainer.finetune.settings import FinetuneSettings
from trainer.finetune.task import Item, Outputs
from trainer.model.task_heads import BertForTask, Head, count_losses, task_loss_sum
from trainer.optim.build_optimizer import build_optimizer
from trainer.optim.schedule import Schedule
from trainer.optim.settings import OptimizerSettings
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks


@dataclass(frozen=True)
class Recipe:
    """What one run of a search is trained with.

    Attributes:
        global_batch: Items of a step over all ranks.
        peak_lr: The highest.
        epochs: Times that every item is seen.
        seed: Random seed of new weights, order and dropout.
    """

    global_batch: int
    peak_lr: float
    epochs: int
    seed: int

    @property
    def name(self) -> str:
        """A name of the run for files and people."""
        return f"batch{self.global_batch}-lr{self.peak_lr:g}-epochs{self.epochs}-seed{self.seed}"

    def num_steps(self, num_items: int) -> int:
        """Optimizer steps of the run."""
        return self.epochs * math.ceil(num_items / self.global_batch)


def train_task(
    model: BertForTask,
    items: Sequence[Item],
    recipe: Recipe,
    settings: FinetuneSettings,
    ranks: Ranks,
    report: Callable[[float], None],
) -> Any:
    """Trains the model on the items; called by all ranks.

    Args:
        model: The model as it begins, on the CPU.
        items: All of them, on every rank.
        recipe: Batch size, learning rate, epochs and seed.
        settings: The rest.
        ranks: This process among all.
        report: Told the loss of every step.

    Returns:
        The engine; `engine.module` is the trained model.
    """
    optimizer = build_optimizer(model, OptimizerSettings(bias_correction=settings.bias_correction))
    zero_stage = (
        0 if settings.precision == "fp32" else 1
    )  # fp32 gradients of bf16 weights need a stage
    engine = start_engine(
        model, optimizer, deepspeed_config({}, zero_stage, settings.precision), ranks
    )
    steps = recipe.num_steps(len(items))
    schedule = Schedule(steps, round(settings.warmup_fraction * steps), recipe.peak_lr)
    engine.train()
    stream = iterate_steps(
        items,
        global_batch=recipe.global_batch,
        epochs=recipe.epochs,
        seed=recipe.seed,
        world_size=ranks.world_size,
        micro_tokens=settings.micro_tokens,
    )
    for index, step in enumerate(stream):
        optimizer.set_learning_rate(schedule.learning_rate(index))
        seed_dropout(recipe.seed, 0, index, ranks.rank)
        report(task_step(engine, model.head, step, ranks))
    return engine


def task_step(engine: Any, head: Head, step: Step, ranks: Ranks) -> float:
    """One optimizer step, exact for any split over ranks and micro-batches; the loss."""
    count = max(1, sum(count_losses(head, torch.from_numpy(item.labels)) for item in step.items))
    total = torch.zeros(1, dtype=torch.float64, device=ranks.device)
    for items in step.ranks[ranks.rank]:
        batch = pack_items(items, ranks.device)
        loss_sum = task_loss_sum(
            head, engine(batch), batch.labels, batch.cu_seqlens, batch.item_starts
        )
        engine.backward(loss_sum / count * ranks.world_size, scale_wrt_gas=False)
        total += loss_sum.detach().double()
    optimizer: ShardedOptimizer = engine.basic_optimizer
    optimizer.carry(total)
    engine.step()
    if not optimizer.has_arrived():
        torch.distributed.all_reduce(total)
    return float(total) / count


@torch.no_grad()
def predict_items(
    model: BertForTask,
    items: Sequence[Item],
    micro_tokens: int,
    ranks: Ranks,
) -> list[Outputs]:
    """The head's outputs for each item, in order, known to all ranks, which compute them together.

    The model keeps its mode; it drops nothing out meanwhile.
    """
    was_training = model.training
    model.eval()
    mine: list[Outputs] = []
    for chunk in cut_items(items[ranks.rank :: ranks.world_size], micro_tokens):
        batch = pack_items(chunk, ranks.device)
        mine += split_outputs(model.head, model(batch), batch)
    model.train(was_training)
    shares = ranks.gather(mine)
    return [
        shares[index % ranks.world_size][index // ranks.world_size] for index in range(len(items))
    ]


def split_outputs(head: Head, logits: Tensor, batch: TaskBatch) -> list[Outputs]:
    """The logits of each item, as trainer.finetune.task describes them."""
    rows = logits.float().cpu().numpy()
    if head.kind == "choice":
        return np.split(rows[:, 0], batch.item_starts[1:-1].cpu().numpy())
    if head.reads_pooled:
        return list(rows)
    return np.split(rows, batch.cu_seqlens[1:-1].cpu().numpy())
