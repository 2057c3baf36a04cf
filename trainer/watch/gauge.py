"""How well a step used the machine: throughput, MFU, memory, time left (docs/watching.md)."""

import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from trainer.engine.train_step import StepCounts
from trainer.model.config import BertConfig, Lengths, training_flops
from trainer.process.gpus import peak_tflops_of
from trainer.process.ranks import Ranks
from trainer.settings import Phase

REMEMBERED_STEPS = 100


class Gauge:
    """Turns the counts of a step and its time into columns of metrics.jsonl."""

    def __init__(
        self, config: BertConfig, phases: Sequence[Phase], ranks: Ranks, peak: float | None = None
    ) -> None:
        """MFU is a share of the peak in TFLOP/s of a device; by default a GPU's data sheet's."""
        if ranks.device.type == "cuda" and peak is None:
            peak = peak_tflops_of(torch.cuda.get_device_name(ranks.device))
        self.peak_tflops = peak
        self._config, self._phases, self._ranks = config, phases, ranks
        # Whole seconds from step to step, saving included.
        self._recent: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._phase, self._last, self._is_warm = -1, 0.0, False

    def columns(
        self, counts: StepCounts, seconds: float, phase: int, steps_left: int
    ) -> dict[str, Any]:
        """What the step that has just been made, and its steps left of the phase, add to its row.

        `seconds` run from asking for the batch to the end of its update; mfu needs a peak.
        """
        lengths = Lengths(counts.tokens, counts.squared_tokens, counts.masked)
        flops = training_flops(self._config, lengths)
        tflops = flops / seconds / self._ranks.world_size / 1e12
        return {
            "tokens_per_second": counts.tokens / seconds,
            "max_over_mean_tokens": counts.most_tokens * self._ranks.world_size / counts.tokens,
            "data_wait_share": min(1.0, counts.wait_seconds / seconds),
            "model_tflops_per_rank": tflops,
            "mfu": tflops / self.peak_tflops if self.peak_tflops else None,
            "peak_memory_bytes": max(counts.memory_bytes, self._ranks.peak_memory_bytes()),
            "eta_seconds": self._eta(seconds, phase, steps_left),
        }

    def _eta(self, seconds: float, phase: int, steps_left: int) -> float:
        """Seconds until the run ends, by recent steps; other phases count by their tokens."""
        now = time.monotonic()
        if phase != self._phase:
            self._recent.clear()
            self._phase, self._last, self._is_warm = phase, now - seconds, False
        elif not self._is_warm:
            self._recent.clear()  # the first step of a launch, which starts threads and compiles
            self._is_warm = True
        self._recent.append(now - self._last)
        self._last = now
        a_step = statistics.fmean(self._recent)
        tokens = [each.global_batch * each.seq_len for each in self._phases]
        later = range(phase + 1, len(tokens))
        left = sum(self._phases[index].steps * tokens[index] for index in later)
        return a_step * (steps_left + left / tokens[phase])
