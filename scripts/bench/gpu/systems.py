"""Who trains in the GPU benchmark: our step, a plain loop, transformers.

Each makes steps over the same instances and marks where its forward passes, backward passes and
update begin.
"""

import copy
from typing import Any, Protocol

import torch
from torch import Tensor

from scripts.bench.gpu.cases import Case
from scripts.bench.gpu.clock import Marks
from scripts.bench.train_step import twin_of
from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.start import start_engine
from trainer.engine.train_step import (
    StepCounts,
    agree_on_step,
    forward_sums,
    grad_norm,
    seed_dropout,
    train_step,
)
from trainer.model.bert import BertForPreTraining, build_model, compile_model
from trainer.model.config import BertConfig, preset
from trainer.optim.adamw import AdamW
from trainer.optim.lamb import Lamb
from trainer.process.ranks import Ranks
from trainer.stream.packing import pad_micro_batch
from trainer.stream.rank_steps import RankStep

LEARNING_RATE = 1e-4
# What reads no padding in transformers, the fastest first; the first that this machine's packages
# allow is taken.
PEER_ATTENTIONS = ("flash_attention_3", "flash_attention_2", "flex_attention")


class System(Protocol):
    """What can be measured."""

    marks: Marks

    def prepare(self, step: RankStep) -> None:
        """What another system's own loader would have done with the step's instances; not counted."""

    def step(self, step: RankStep) -> float:
        """Makes a step, with what a loop does around it; its loss, read back from the device."""

    def close(self) -> None:
        """Lets go of memory."""


def build_system(case: Case, model: BertForPreTraining, ranks: Ranks) -> System:
    """The case's system with the weights of `model`, which is on the CPU and stays as it is."""
    if case.system == "transformers":
        return Transformers(case, model, ranks.device)
    with torch.device("meta"):  # weights of torch's own would take seconds to draw
        ours = BertForPreTraining(case_config(case, model.config))
    ours.to_empty(device="cpu").load_state_dict(model.state_dict())
    ours.train().bert.recompute_layers = case.recompute
    if case.compile:
        compile_model(ours)
    return Ours(case, ours, ranks) if case.system == "ours" else Plain(case, ours, ranks.device)


def case_config(case: Case, config: BertConfig) -> BertConfig:
    """The model's config under a case."""
    changed: dict[str, Any] = {
        "hidden_dropout": case.dropout,
        "attention_dropout": case.dropout,
        "fused_qkv": case.fused_qkv,
        "padded_vocab": case.padded_vocab,
        "fused_sums": case.fused_sums,
        "fp8": case.fp8,
        "attention_backend": case.attention if case.system != "transformers" else "auto",
    }
    return BertConfig(**{**vars(config), **changed})


def build_optimizer(case: Case, named: Any) -> AdamW:
    """Ours, of the case."""
    optimizer = (Lamb if case.optimizer == "lamb" else AdamW)(named)
    optimizer.set_learning_rate(LEARNING_RATE)
    return optimizer


class Ours:
    """The trainer's step: counts agreed on, dropout keyed, DeepSpeed around the model, loss and norm read back."""

    def __init__(self, case: Case, model: BertForPreTraining, ranks: Ranks) -> None:
        self.marks, self._ranks = Marks(ranks.device), ranks
        self._optimizer = build_optimizer(case, model.named_parameters())
        self._engine = start_engine(
            model, self._optimizer, deepspeed_config({}, case.zero_stage, "bf16"), ranks
        )
        self._backward = self.marks.around("backward", self._engine.backward, then="forward")
        self._update = self.marks.around("optimizer", self._engine.step, then="rest")

    def step(self, step: RankStep) -> float:
        """As `trainer.pretrain.loop` makes it."""
        self.marks.begin("rest")
        counts = agree_on_step(self._ranks, step.micro_batches, 0.0, must_stop=False)
        seed_dropout(0, 0, step.step, 0)
        self.marks.mark("forward")
        sums = train_step(
            _Marked(self._engine, self._backward, self._update),
            self._ranks,
            step.micro_batches,
            counts,
        )
        mlm, nsp, *_ = sums.tolist()
        grad_norm(self._engine, self._optimizer)
        self.marks.mark("end")
        return float(mlm / counts.masked + nsp / counts.instances)

    def prepare(self, step: RankStep) -> None:
        """Nothing: the loader makes what the step takes."""

    def close(self) -> None:
        """Takes the engine apart: its hooks hold the weights."""
        self._engine.destroy()


class _Marked:
    """An engine whose calls leave marks."""

    def __init__(self, engine: Any, backward: Any, step: Any) -> None:
        self._engine, self.backward, self.step = engine, backward, step
        self.basic_optimizer, self.mlm_head = engine.basic_optimizer, engine.mlm_head

    def __call__(self, *args: Any) -> Any:
        return self._engine(*args)


class Plain:
    """The same without DeepSpeed: bf16 weights, fp32 copies that are updated, fp32 sums of gradients."""

    def __init__(self, case: Case, model: BertForPreTraining, device: torch.device) -> None:
        self.marks, self._device = Marks(device), device
        copies = {name: each.detach().to(device).float() for name, each in model.named_parameters()}
        self._copies = {name: torch.nn.Parameter(each) for name, each in copies.items()}
        self._model = model.to(device, torch.bfloat16)
        self._weights: list[Tensor] = list(model.parameters())
        self._optimizer = build_optimizer(case, self._copies.items())
        for each in self._copies.values():
            each.grad = torch.zeros_like(each)

    def step(self, step: RankStep) -> float:
        """Forward and backward passes, sums in fp32, update, weights back."""
        self.marks.begin("forward")
        losses = []
        copies: list[Tensor] = list(self._copies.values())
        gradients = [each.grad for each in copies if each.grad is not None]
        for batch in step.micro_batches:
            sums = forward_sums(self._model, batch, self._device)
            loss = sums.mlm_nll / step.num_masked + sums.nsp_nll / step.num_instances
            self.marks.mark("backward")
            torch.autograd.backward(loss)
            self._add_gradients(gradients)
            losses.append(loss.detach())
            self.marks.mark("forward")
        self.marks.mark("optimizer")
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self._weights, copies)
            torch._foreach_zero_(gradients)
        self.marks.mark("rest")
        total = float(torch.stack(losses).sum())
        self.marks.mark("end")
        return total

    @torch.no_grad()
    def _add_gradients(self, gradients: list[Tensor]) -> None:
        found = [each.grad for each in self._weights]
        torch._foreach_add_(gradients, [each for each in found if each is not None])
        for each in self._weights:
            each.grad = None

    def prepare(self, step: RankStep) -> None:
        """Nothing: the loader makes what the step takes."""

    def close(self) -> None:
        """Nothing holds it."""


class Transformers:
    """transformers.BertForPreTraining as its users train it fastest: bf16 weights, torch's fused AdamW, compiled.

    Micro-batches are equal numbers of rows of seq_len tokens, so that compiled code sees one shape.
    """

    def __init__(self, case: Case, model: BertForPreTraining, device: torch.device) -> None:
        self.marks, self._device, self._case = Marks(device), device, case
        attention = self.attention = peer_attention(case.attention)
        ours = copy.deepcopy(model)
        ours.config = case_config(case, model.config)
        if (
            attention == "flex_attention"
        ):  # has no dropout in transformers: it is spared what ours does
            ours.config = BertConfig(**{**vars(ours.config), "attention_dropout": 0.0})
            self.attention = f"{attention}, without dropout"
        self._model = twin_of(ours, attention).to(device, torch.bfloat16)
        matrices = [each for each in self._model.parameters() if each.ndim >= 2]
        others = [each for each in self._model.parameters() if each.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": 0.01},
            {"params": others, "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=1e-6, fused=True)
        self._rows: dict[str, Tensor] = {}
        self._call = torch.compile(self._model) if case.compile else self._model

    def step(self, step: RankStep) -> float:
        """Forward and backward passes over equal numbers of rows, clipping, update."""
        rows = self._rows
        assert len(rows["labels"]) == step.num_instances, "the step was prepared"
        self.marks.begin("forward")
        losses = []
        for start in range(
            0, len(rows["labels"]), size := max(1, self._case.micro_tokens // self._case.seq_len)
        ):
            micro = {name: column[start : start + size] for name, column in rows.items()}
            loss = self._call(**micro).loss * (len(micro["labels"]) / len(rows["labels"]))
            self.marks.mark("backward")
            torch.autograd.backward(loss)
            losses.append(loss.detach())
            self.marks.mark("forward")
        self.marks.mark("optimizer")
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.marks.mark("rest")
        total = float(torch.stack(losses).sum())
        self.marks.mark("end")
        return total

    def prepare(self, step: RankStep) -> None:
        """The step's instances padded to seq_len, on the device."""
        padded = [pad_micro_batch(batch, self._case.seq_len) for batch in step.micro_batches]
        self._rows = {
            name: torch.cat([each[name] for each in padded]).to(self._device) for name in padded[0]
        }

    def close(self) -> None:
        """Nothing holds it."""


def peer_attention(wanted: str) -> str:
    """The name that transformers has for an implementation; for "best" the first of PEER_ATTENTIONS that can be had.

    Raises:
        ValueError: None of them can.
    """
    if wanted != "best":
        return wanted
    refusals, model = [], build_model(preset("tiny", vocab_size=64), seed=0)
    for name in PEER_ATTENTIONS:
        try:
            twin_of(model, name)
        except (ImportError, ValueError) as error:
            refusals.append(f"{name}: {error}")
        else:
            return name
    raise ValueError(f"transformers has no attention without padding here: {'; '.join(refusals)}")


def count_step(ranks: Ranks, step: RankStep) -> StepCounts:
    """What a step holds."""
    return agree_on_step(ranks, step.micro_batches, 0.0, must_stop=False)
