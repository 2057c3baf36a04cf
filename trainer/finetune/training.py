"""Trains a model on the items of a task, and computes a model's outputs for items."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.gradients import Gradients
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

BF16_STAGE = 1
"""ZeRO stage under which a model is fine-tuned in bf16. In fp32 it is 0."""


def train_task(
    model: BertForTask,
    items: Sequence[Item],
    recipe: Recipe,
    settings: FinetuneSettings,
    ranks: Ranks,
    report: Callable[[float], None],
) -> Any:
    """Trains a model by one recipe.

    Args:
        model: The model to train, on the CPU.
        items: The items of all training files; every rank has all of them.
        recipe: The searched settings of this run.
        settings: The settings of the command.
        ranks: The ranks that train together.
        report: A function that is called with the loss of each step.

    Returns:
        The DeepSpeed engine, whose attribute `module` is the trained model.

    Raises:
        ValueError: The loss of a step is not finite, so the weights are lost.
    """
    optimizer = build_optimizer(model, OptimizerSettings(bias_correction=settings.bias_correction))
    assert settings.precision is not None, "decide_precision is called first"
    # DeepSpeed keeps fp32 gradients of bf16 weights only under a stage of ZeRO.
    zero_stage = 0 if settings.precision == "fp32" else BF16_STAGE
    config = deepspeed_config({}, zero_stage, settings.precision)
    engine = start_engine(model, optimizer, config, ranks)
    num_steps = recipe.num_steps(len(items))
    schedule = Schedule(num_steps, round(settings.warmup_fraction * num_steps), recipe.peak_lr)
    engine.train()
    steps = iterate_steps(items, recipe, ranks.world_size, settings.micro_tokens)
    for index, step in enumerate(steps):
        optimizer.set_learning_rate(schedule.learning_rate(index))
        seed_dropout(recipe.seed, 0, index, ranks.rank)
        loss = task_step(engine, model.head, step, ranks)
        if not math.isfinite(loss):
            # Equal on all ranks, so all of them stop.
            raise ValueError(
                f"{recipe.name}: the loss of step {index + 1} of {num_steps} is {loss}; give a"
                f" --search_peak_lr below {recipe.peak_lr:g} (runs that are finished are kept)"
            )
        report(loss)
    return engine


def task_step(engine: Any, head: Head, step: Step, ranks: Ranks) -> float:
    """Makes one optimizer step.

    The loss of the step is the sum over the items of all ranks, divided by the number of losses in
    the whole step (`count_losses`). Therefore the result does not depend on the number of ranks,
    nor on how items are divided into micro-batches.

    Args:
        engine: The DeepSpeed engine.
        head: The head of the engine's model.
        step: The items of the step, divided among the ranks.
        ranks: The ranks, all of which call this function.

    Returns:
        The mean loss of the step, over all ranks.
    """
    count = max(1, sum(count_losses(head, torch.from_numpy(item.labels)) for item in step.items))
    total = torch.zeros(1, dtype=torch.float64, device=ranks.device)
    gradients: Gradients = engine.gradients
    micro_batches = step.ranks[ranks.rank]
    for num_passes, items in enumerate(micro_batches, start=1):
        batch = pack_items(items, ranks.device)
        logits = engine(batch)
        loss_sum = task_loss_sum(head, logits, batch.labels, batch.cu_seqlens, batch.item_starts)
        gradients.backward(loss_sum / count, is_last=num_passes == len(micro_batches))
        total += loss_sum.detach().double()
    optimizer: ShardedOptimizer = engine.basic_optimizer
    optimizer.carry(total)
    gradients.step()
    if not optimizer.has_arrived():
        torch.distributed.all_reduce(total)
    return float(total) / count


@torch.no_grad()
def predict_items(
    model: BertForTask, items: Sequence[Item], micro_tokens: int, ranks: Ranks
) -> list[Output]:
    """Returns the model's output for each item. The ranks share the work, and all get all outputs.

    Args:
        model: The model. It is put into evaluation mode, so that it computes without dropout, and
            then back into its former mode.
        items: The items; every rank has all of them.
        micro_tokens: The most tokens of one forward pass.
        ranks: The ranks that share the items.
    """
    was_training = model.training
    model.eval()
    outputs: list[Output] = []
    for chunk in cut_items(items[ranks.rank :: ranks.world_size], micro_tokens):
        batch = pack_items(chunk, ranks.device)
        outputs += split_outputs(model.head, model(batch), batch)
    model.train(was_training)
    shares = ranks.gather(outputs)
    return [shares[n % ranks.world_size][n // ranks.world_size] for n in range(len(items))]


def split_outputs(head: Head, logits: Tensor, batch: TaskBatch) -> list[Output]:
    """Splits the logits of a micro-batch into the outputs of its items.

    Args:
        head: The head that computed the logits.
        logits: [sequences, outputs of the head], or [tokens, outputs] from a head that reads every
            token.
        batch: The micro-batch that the head read.

    Returns:
        One array for each item, with a shape that `trainer.finetune.task.Output` describes.
    """
    rows = logits.float().cpu().numpy()
    if head.kind == "choice":
        return np.split(rows[:, 0], batch.item_starts[1:-1].cpu().numpy())
    if head.reads_pooled:
        return list(rows)
    return np.split(rows, batch.cu_seqlens[1:-1].cpu().numpy())
