"""One fine-tuning run and the outputs of a model: what happens between items and numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.train_step import seed_dropout
from trainer.engine.zero import start_engine
from trainer.finetune.batches import Recipe, Step, TaskBatch, cut_items, iterate_steps, pack_items
from trainer.finetune.settings import FinetuneSettings
from trainer.finetune.task import Item, Output
from trainer.model.task_heads import BertForTask, Head, count_losses, task_loss_sum
from trainer.optim.build_optimizer import build_optimizer
from trainer.optim.settings import OptimizerSettings, Schedule
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks


def train_task(
    model: BertForTask,
    items: Sequence[Item],
    recipe: Recipe,
    settings: FinetuneSettings,
    ranks: Ranks,
    report: Callable[[float], None],
) -> Any:
    """Trains a model that begins on the CPU; the engine, whose `module` is the trained model."""
    optimizer = build_optimizer(model, OptimizerSettings(bias_correction=settings.bias_correction))
    # fp32 gradients of bf16 weights need a stage.
    zero_stage = 0 if settings.precision == "fp32" else 1
    config = deepspeed_config({}, zero_stage, settings.precision)
    engine = start_engine(model, optimizer, config, ranks)
    num_steps = recipe.num_steps(len(items))
    schedule = Schedule(num_steps, round(settings.warmup_fraction * num_steps), recipe.peak_lr)
    engine.train()
    steps = iterate_steps(items, recipe, ranks.world_size, settings.micro_tokens)
    for index, step in enumerate(steps):
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
        logits = engine(batch)
        loss_sum = task_loss_sum(head, logits, batch.labels, batch.cu_seqlens, batch.item_starts)
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
    model: BertForTask, items: Sequence[Item], micro_tokens: int, ranks: Ranks
) -> list[Output]:
    """The head's outputs for each item, in order, on all ranks, which compute them together."""
    was_training = model.training
    model.eval()
    mine: list[Output] = []
    for chunk in cut_items(items[ranks.rank :: ranks.world_size], micro_tokens):
        batch = pack_items(chunk, ranks.device)
        mine += split_outputs(model.head, model(batch), batch)
    model.train(was_training)
    shares = ranks.gather(mine)
    return [shares[n % ranks.world_size][n // ranks.world_size] for n in range(len(items))]


def split_outputs(head: Head, logits: Tensor, batch: TaskBatch) -> list[Output]:
    """The logits of each item, as trainer.finetune.task describes them."""
    rows = logits.float().cpu().numpy()
    if head.kind == "choice":
        return np.split(rows[:, 0], batch.item_starts[1:-1].cpu().numpy())
    if head.reads_pooled:
        return list(rows)
    return np.split(rows, batch.cu_seqlens[1:-1].cpu().numpy())
