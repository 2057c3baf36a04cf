"""Optimizer steps on a GPU, ours and transformers' over the same instances: a JSON line a case.

    python -m scripts.bench.pretrain_gpu --data DATASET [--preset large] [--seq_lens 128 512]

Ours is the trainer's own step under ZeRO-1: compiled, plain, with LAMB, and with padded attention.
The peer is BertForPreTraining of transformers on the same rows, padded to seq_len: bf16 weights,
torch's fused AdamW, compiled, with torch's attention and, where it is installed, flash_attention_2.
Only real tokens count. MFU is of a matrix product that is measured first. A case that fails leaves
a line that says how.
"""

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pipeline.shards.dataset import Dataset, open_dataset
from scripts.bench.measured import print_result, summarize
from scripts.bench.train_step import torch_adamw, twin_of
from scripts.checkout import make_parser
from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.train_step import StepCounts, begin_to_agree, seed_dropout, train_step
from trainer.engine.zero import start_engine
from trainer.model.bert import build_model, compile_model
from trainer.model.config import BertConfig, Lengths, preset, training_flops
from trainer.optim.adamw import AdamW
from trainer.optim.lamb import Lamb
from trainer.process.ranks import Ranks, device_name, start_ranks, stop_ranks
from trainer.stream.batches.pack import pad_micro_batch
from trainer.stream.step import RankStep, StepLoader, StepSizes, StreamPlan

PACKAGES = ("torch", "deepspeed", "transformers")
LEARNING_RATE = 1e-4
WARMUP_STEPS = 3
FEWEST_STEPS = 5
PRODUCT_SIZE = 8_192


@dataclass(frozen=True)
class Case:
    """One system (ours or transformers) with its own name of an attention, and its optimizer."""

    system: str
    seq_len: int
    attention: str
    compile: bool = True
    optimizer: str = "adamw"


def cases_of(seq_len: int) -> list[Case]:
    """Returns all cases of one length."""
    ours = Case("ours", seq_len, "auto")
    theirs = Case("transformers", seq_len, "sdpa")
    return [
        ours,
        replace(ours, compile=False),
        replace(ours, optimizer="lamb"),
        replace(ours, attention="padded"),
        theirs,
        replace(theirs, attention="flash_attention_2"),
    ]


class Ours:
    """The trainer's step, as trainer/pretrain/loop.py makes it."""

    def __init__(self, case: Case, config: BertConfig, ranks: Ranks) -> None:
        model = build_model(replace(config, attention_backend=case.attention), seed=0).train()
        if case.compile:
            compile_model(model)
        self._ranks = ranks
        optimizer = (Lamb if case.optimizer == "lamb" else AdamW)(model.named_parameters())
        optimizer.set_learning_rate(LEARNING_RATE)
        self._engine = start_engine(model, optimizer, deepspeed_config({}, 1, "bf16"), ranks)

    def prepare(self, step: RankStep) -> Callable[[], float]:
        """Returns a function that makes the step and returns its loss."""

        def make() -> float:
            counts = count_step(self._ranks, step)
            seed_dropout(0, 0, step.step, 0)
            mlm, nsp, *_ = train_step(
                self._engine, self._ranks, step.micro_batches, counts
            ).tolist()
            return float(mlm / counts.masked + nsp / counts.instances)

        return make

    def close(self) -> None:
        """Takes the engine apart: its hooks hold the weights."""
        self._engine.destroy()


class Transformers:
    """A plain loop over transformers' model, in micro-batches of equally many padded rows."""

    def __init__(self, case: Case, config: BertConfig, ranks: Ranks, micro_tokens: int) -> None:
        model = build_model(config, seed=0)
        self._model = twin_of(model, case.attention).to(ranks.device, torch.bfloat16)
        self._optimizer = torch_adamw(self._model, fused=True)
        self._call = torch.compile(self._model) if case.compile else self._model
        self._device = ranks.device
        self._seq_len = case.seq_len
        self._num_rows = max(1, micro_tokens // case.seq_len)

    def prepare(self, step: RankStep) -> Callable[[], float]:
        """Pads the rows of a step. Returns a function that makes the step and returns its loss."""
        padded = [pad_micro_batch(batch, self._seq_len) for batch in step.micro_batches]
        rows = {
            name: torch.cat([each[name] for each in padded]).to(self._device) for name in padded[0]
        }
        return lambda: self._make(rows)

    def _make(self, rows: dict[str, Tensor]) -> float:
        losses = []
        num_rows = len(rows["labels"])
        for start in range(0, num_rows, self._num_rows):
            micro = {name: each[start : start + self._num_rows] for name, each in rows.items()}
            loss = self._call(**micro).loss * (len(micro["labels"]) / num_rows)
            torch.autograd.backward(loss)
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(torch.stack(losses).sum())

    def close(self) -> None:
        """Does nothing, because the model holds no resources that need to be released."""


@dataclass(frozen=True)
class Bench:
    """What all cases have in common; MFU is a share of `matmul_tflops`."""

    dataset: Dataset
    config: BertConfig
    ranks: Ranks
    options: argparse.Namespace
    matmul_tflops: float

    def run(self, case: Case) -> dict[str, Any]:
        """Measures a case. If it fails, the result has the error, and other cases can go on."""
        system = None
        try:
            system = self._build(case)
            return self._measure(case, system)
        except Exception as error:  # noqa: BLE001 - memory, compilers and packages that are missing
            return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        finally:
            if system is not None:
                system.close()
            del system
            torch.compiler.reset()
            gc.collect()
            if self.ranks.device.type == "cuda":
                torch.cuda.empty_cache()

    def _build(self, case: Case) -> Ours | Transformers:
        if case.system == "ours":
            return Ours(case, self.config, self.ranks)
        return Transformers(case, self.config, self.ranks, self.options.micro_tokens)

    def _measure(self, case: Case, system: Ours | Transformers) -> dict[str, Any]:
        if self.ranks.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        sizes = StepSizes(
            rank=0,
            world_size=1,
            global_batch=max(1, self.options.step_tokens // case.seq_len),
            micro_tokens=self.options.micro_tokens,
        )
        loader = StepLoader(
            self.dataset,
            "train",
            case.seq_len,
            sizes,
            StreamPlan(seed=0),
            pin_memory=self.ranks.device.type == "cuda",
        )
        with loader:
            losses = [system.prepare(next(loader))() for _ in range(WARMUP_STEPS)]
            rows = [self._time(system, loader)]
            while len(rows) < FEWEST_STEPS or sum(row[0] for row in rows) < self.options.seconds:
                rows.append(self._time(system, loader))
        return {
            "first_loss": round(losses[0], 4),
            "step_seconds": summarize([seconds for seconds, _ in rows], 5),
            "real_tokens_per_second": summarize([each.tokens / spent for spent, each in rows], 1),
            "mfu": summarize([self._mfu(spent, each) for spent, each in rows], 4),
            "peak_memory_gib": round(self.ranks.peak_memory_bytes() / 2**30, 3),
        }

    def _time(self, system: Ours | Transformers, loader: StepLoader) -> tuple[float, StepCounts]:
        """Makes a step, and returns its seconds and its counts.

        The seconds are those of waiting for data, and of the step until its loss is on the host.
        Padding is not timed.
        """
        began = time.perf_counter()
        step = next(loader)
        waited = time.perf_counter() - began
        make = system.prepare(step)
        began = time.perf_counter()
        make()
        return waited + time.perf_counter() - began, count_step(self.ranks, step)

    def _mfu(self, seconds: float, counts: StepCounts) -> float:
        lengths = Lengths(counts.tokens, counts.squared_tokens, counts.masked)
        flops = training_flops(self.config, lengths)
        return flops / seconds / 1e12 / self.matmul_tflops


def count_step(ranks: Ranks, step: RankStep) -> StepCounts:
    """Returns the counts of a step over all ranks."""
    return begin_to_agree(ranks, step.micro_batches, 0.0)()


def measure_product(device: torch.device, size: int, repeats: int = 20) -> float:
    """Returns the TFLOP/s of a bf16 product of two square matrices of random numbers."""
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    for number in range(repeats + 3):
        if number == 3:
            float(left.sum())  # waits for the device
            began = time.perf_counter()
        product = left @ right
    float(product.sum())
    return repeats * 2 * size**3 / (time.perf_counter() - began) / 1e12


def parse_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="dataset of `python -m pipeline build`")
    parser.add_argument("--preset", default="large")
    parser.add_argument("--seq_lens", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--step_tokens", type=int, default=131_072, help="seq_len * instances")
    parser.add_argument("--micro_tokens", type=int, default=32_768)
    parser.add_argument("--seconds", type=float, default=10.0, help="timed steps of a case")
    parser.add_argument("--product_size", type=int, default=PRODUCT_SIZE)
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    return parser.parse_args()


def main() -> None:
    """Measures all cases, and prints a line for each."""
    options = parse_options()
    ranks = start_ranks()
    try:
        dataset = open_dataset(options.data)
        config = preset(options.preset, vocab_size=dataset.manifest.vocab_size)
        ceiling = measure_product(ranks.device, options.product_size)
        bench = Bench(dataset, config, ranks, options, ceiling)
        facts = {"device": device_name(ranks.device), "matmul_tflops": round(ceiling, 4)}
        cases = [case for length in options.seq_lens for case in cases_of(length)]
        if options.eager:
            cases = list(dict.fromkeys(replace(case, compile=False) for case in cases))
        for case in cases:
            sizes = {"preset": options.preset, "micro_tokens": options.micro_tokens}
            print_result("pretrain_gpu", sizes | asdict(case), PACKAGES, **facts, **bench.run(case))
    finally:
        stop_ranks()


if __name__ == "__main__":
    main()
