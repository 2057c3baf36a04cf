"""One case of the GPU benchmark: real shards through the loader, steps made and timed, the memory given back."""

import gc
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any
from unittest import mock

import torch

from pipeline.shards.dataset import Dataset
from scripts.bench.gpu.cases import Case
from scripts.bench.gpu.clock import PARTS
from scripts.bench.gpu.profile import operations_of
from scripts.bench.gpu.result import read_clocks
from scripts.bench.gpu.systems import System, build_system, count_step
from scripts.bench.measured import summarize
from trainer.model.bert import BertForPreTraining
from trainer.model.flops import batch_flops
from trainer.process.ranks import Ranks
from trainer.stream.step import StepLoader

WARMUP_STEPS = 3  # kernels are compiled and chosen, memory is taken
FEWEST_STEPS = 5


@dataclass(frozen=True)
class Bench:
    """What all cases have in common.

    Attributes:
        dataset: Real shards.
        model: Weights that every case begins with, on the CPU.
        ranks: This process.
        matmul_tflops: Measured ceiling that MFU is a share of.
        case_seconds: Of timed steps, at least FEWEST_STEPS of them.
        profiled: Names of cases whose synchronisations are counted and whose operations are listed.
    """

    dataset: Dataset
    model: BertForPreTraining
    ranks: Ranks
    matmul_tflops: float
    case_seconds: float
    profiled: frozenset[str]

    def run(self, case: Case) -> dict[str, Any]:
        """The case's row; one that fails says how, for the others to go on."""
        try:
            return self._measure(case)
        except torch.OutOfMemoryError as error:
            return {"does_not_fit": f"{error}".splitlines()[0][:400]}
        except Exception as error:  # noqa: BLE001 - DeepSpeed asserts, compilers fail in ways of their own
            return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:400]}
        finally:
            torch.compiler.reset()
            for _ in range(2):  # what DeepSpeed ties in a circle is only let go the second time
                gc.collect()
            if self.ranks.device.type == "cuda":
                torch.cuda.empty_cache()

    def _measure(self, case: Case) -> dict[str, Any]:
        cuda = self.ranks.device.type == "cuda"
        torch._dynamo.utils.counters.clear()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        system = build_system(case, self.model, self.ranks)
        try:
            with self._steps(case) as loader:
                found = self._time_steps(system, loader)
                found["peak_memory_gib"] = round(self.ranks.peak_memory_bytes() / 2**30, 3)
                found["compiled_graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
                found["attention"] = getattr(system, "attention", case.attention)
                found["clocks"] = read_clocks() if cuda else {}
                if case.name in self.profiled:
                    found |= self._profile(system, loader)
            return found
        finally:
            system.close()

    def _profile(self, system: System, loader: StepLoader) -> dict[str, Any]:
        """Waits and operations of a step each; times are kept where a profiler fails."""
        found: dict[str, Any] = {}
        try:
            is_cuda = self.ranks.device.type == "cuda"
            found["synchronisations_per_step"] = (
                count_synchronisations(system, loader) if is_cuda else None
            )
            found["operations"] = operations_of(
                lambda: make_step(system, loader), self.ranks.device
            )
        except Exception as error:  # noqa: BLE001 - CUPTI fails in ways of its own
            found["profile_error"] = f"{type(error).__name__}: {error}".splitlines()[0][:400]
        return found

    def _steps(self, case: Case) -> StepLoader:
        return StepLoader(
            self.dataset,
            "train",
            case.seq_len,
            rank=0,
            world_size=1,
            global_batch=case.global_batch,
            micro_tokens=case.micro_tokens,
            seed=0,
            pin_memory=self.ranks.device.type == "cuda",
        )

    def _time_steps(self, system: System, loader: StepLoader) -> dict[str, Any]:
        began = time.perf_counter()
        first_loss, *_ = [make_step(system, loader) for _ in range(WARMUP_STEPS)]
        warm = time.perf_counter()
        rows: list[dict[str, float]] = []
        loss = first_loss
        while len(rows) < FEWEST_STEPS or time.perf_counter() - warm < self.case_seconds:
            rows.append(self._time_step(system, loader))
            loss = rows[-1].pop("loss")
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        step_seconds = summarize(columns["seconds"], 5)
        return {
            "first_loss": round(first_loss, 4),
            "last_loss": round(loss, 4),
            "warmup_seconds": round(warm - began, 2),
            "step_seconds": step_seconds,
            "real_tokens_per_second": summarize(columns["tokens_per_second"], 1),
            "model_tflops": summarize(columns["model_tflops"], 4),
            "mfu": summarize([each / self.matmul_tflops for each in columns["model_tflops"]], 4),
            "micro_batches": summarize(columns["micro_batches"], 1)["median"],
            "median_share_of_step": {
                name: round(median(row[name] / row["seconds"] for row in rows), 4)
                for name in SHARES
            },
            "share_of_step": {
                name: round(sum(columns[name]) / sum(columns["seconds"]), 4) for name in SHARES
            },
        }

    def _time_step(self, system: System, loader: StepLoader) -> dict[str, float]:
        """Seconds from asking for the data until the loss was read, and what they were spent on."""
        began = time.perf_counter()
        step = next(loader)
        waited = time.perf_counter() - began
        system.prepare(step)
        began = time.perf_counter()
        loss = system.step(step)
        seconds = waited + time.perf_counter() - began
        counts = count_step(self.ranks, step)
        config = self.model.config
        flops = batch_flops(
            config, counts.instances, counts.tokens, counts.squared_tokens, counts.masked
        )
        parts: Mapping[str, float] = system.marks.seconds()
        return {
            **{name: parts[name] for name in PARTS},
            "data_wait": waited,
            "rest": max(0.0, seconds - waited - sum(parts[name] for name in PARTS)),
            "seconds": seconds,
            "tokens_per_second": counts.tokens / seconds,
            "model_tflops": flops / seconds / 1e12,
            "micro_batches": float(len(step.micro_batches)),
            "loss": loss,
        }


SHARES = (*PARTS, "data_wait", "rest")


def make_step(system: System, loader: StepLoader) -> float:
    """The next step of the stream; its loss."""
    step = next(loader)
    system.prepare(step)
    return system.step(step)


def count_synchronisations(system: System, loader: StepLoader) -> int:
    """How often the host waits for the GPU in one step; what reads the loss is in it."""
    step = next(loader)
    system.prepare(step)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        # The debug mode does not see `torch.cuda.synchronize`.
        with (
            mock.patch.object(
                torch.cuda, "synchronize", wraps=torch.cuda.synchronize
            ) as synchronize,
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            system.step(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return synchronize.call_count + sum(
        "synchroniz" in str(each.message).lower() for each in caught
    )
