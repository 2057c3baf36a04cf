"""Measures how well a step used the machine, for metrics.jsonl (docs/watching.md).

The measures are throughput, model FLOPs utilization (MFU), memory, and the time that is left.
"""

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
"""The number of recent steps whose mean time decides the time that is left."""


class Gauge:
    """Computes the columns of metrics.jsonl about speed, memory and the time that is left.

    `columns` is to be called at the end of every step, because the time that is left follows from
    the times at which the last steps ended.
    """

    def __init__(
        self,
        config: BertConfig,
        phases: Sequence[Phase],
        ranks: Ranks,
        precision: str,
        peak: float | None = None,
    ) -> None:
        """Prepares the measures of a run.

        Args:
            config: The model.
            phases: All phases of the run.
            ranks: The ranks of the job.
            precision: Number format of the forward and backward passes, "bf16" or "fp32".
            peak: The TFLOP/s of one device that count as an MFU of 100 %. None takes the number
                of the GPU's data sheet for this precision. On a CPU None means that there is no
                MFU.
        """
        if ranks.device.type == "cuda" and peak is None:
            peak = peak_tflops_of(torch.cuda.get_device_name(ranks.device), precision)
        self.peak_tflops = peak
        self._config = config
        self._phases = phases
        self._ranks = ranks
        # Seconds from the end of a step to the end of the next one, with the time of saving.
        self._recent: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._phase = -1  # of the last step
        self._last = 0.0  # when the last step ended
        self._is_warm = False  # whether the launch or the phase has made its first step

    def columns(
        self, counts: StepCounts, seconds: float, phase: int, steps_left: int
    ) -> dict[str, Any]:
        """Returns the columns for the row of the step that has just ended.

        Args:
            counts: Counts of the step over all ranks.
            seconds: Seconds that the step took, from its start to the end of the update. Any wait
                for the batch of the next step is part of them.
            phase: Index of the phase, from 0.
            steps_left: Number of steps that are left in the phase.

        Returns:
            Columns by name. "mfu" is None if the peak is not known.
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
        """Returns the seconds until the run ends, from the mean time of recent steps.

        The time of a step in a later phase is estimated too: it is assumed to be proportional to
        the step's tokens, `global_batch * seq_len`.

        Args:
            seconds: Seconds that the last step took.
            phase: Index of the last step's phase, from 0.
            steps_left: Number of steps that are left in this phase.
        """
        now = time.monotonic()
        if phase != self._phase:
            self._recent.clear()
            self._phase = phase
            self._last = now - seconds
            self._is_warm = False
        elif not self._is_warm:
            self._recent.clear()  # the first step of a launch, which starts threads and compiles
            self._is_warm = True
        self._recent.append(now - self._last)
        self._last = now
        seconds_per_step = statistics.fmean(self._recent)
        tokens = [entry.global_batch * entry.seq_len for entry in self._phases]
        later = range(phase + 1, len(tokens))
        left = sum(self._phases[index].steps * tokens[index] for index in later)
        return seconds_per_step * (steps_left + left / tokens[phase])
