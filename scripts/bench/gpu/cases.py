"""What the GPU benchmark measures, in order of worth, and how it keeps to its time.

A question is two cases and what is changed between them. All cases of one length read the same
stream of instances; the global batch is counted in tokens, so that the optimizer has the same share
at both lengths, but in the one case that has the 256 instances of Google's recipe.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

SYSTEMS = ("ours", "plain", "transformers")
ROOM = 1.25  # a case is begun if the time left is this many times what such a case took so far


@dataclass(frozen=True)
class Case:
    """One configuration.

    Attributes:
        system: "ours" is the trainer's own step; "plain" the same model, data and optimizer without
            DeepSpeed; "transformers" that library's BertForPreTraining on the same instances,
            padded to the longest of each micro-batch, with weights in bf16 and torch's fused AdamW.
        seq_len: Longest instance.
        global_batch: Instances of a step.
        micro_tokens: Most real tokens of one forward pass.
        optimizer: adamw or lamb.
        zero_stage: Of DeepSpeed.
        compile: Whether torch.compile is used: for ours around attention, for transformers on the
            whole model.
        recompute: Whether activations are recomputed in the backward pass.
        attention: Our back end, or transformers' implementation ("best" is what reads no padding,
            if it has one).
        dropout: Everywhere.
        fused_qkv: Whether query, key and value are one matrix product.
        padded_vocab: Whether the decoder computes a multiple of 64 logits.
        fused_sums: Whether gradients of biases and norms are summed where those under them are
            made.
        fp8: Whether the layers' products are in FP8.
    """

    system: str
    seq_len: int
    global_batch: int
    micro_tokens: int = 32_768
    optimizer: str = "adamw"
    zero_stage: int = 1
    compile: bool = True
    recompute: bool = False
    attention: str = "auto"
    dropout: float = 0.1
    fused_qkv: bool = False
    padded_vocab: bool = False
    fused_sums: bool = False
    fp8: bool = False

    @property
    def name(self) -> str:
        """System, length, and what differs from the defaults."""
        parts = [self.system, str(self.seq_len), f"batch={self.global_batch}"]
        for field in ("micro_tokens", *list(asdict(self))[4:]):
            value = getattr(self, field)
            if value != getattr(type(self), field):
                parts.append(f"{field}={value}")
        return " ".join(parts)


def gpu_cases(step_tokens: int = 131_072) -> list[Case]:
    """The sweep, what answers most first; a budget may end it anywhere.

    Args:
        step_tokens: seq_len * global_batch.
    """
    short, long = (Case("ours", length, step_tokens // length) for length in (128, 512))
    peer = replace(long, system="transformers", attention="sdpa")
    return [
        short,
        long,
        peer,  # goal: ours at least twice as many tokens
        replace(peer, seq_len=128, global_batch=short.global_batch),
        replace(short, system="plain"),  # goal: DeepSpeed within 5 % of it
        replace(short, optimizer="lamb"),  # goal: within 5 % of AdamW
        replace(short, attention="triton"),  # stays if it beats flash attention, else is deleted
        replace(short, attention="triton", fused_qkv=True),
        replace(
            short, fused_sums=True
        ),  # stays if it beats the compiler's own sums, else is deleted
        replace(short, fp8=True),  # goal: 1.25 times the tokens; stays if it has a gain
        replace(
            short, attention="triton", fused_qkv=True, padded_vocab=True, fused_sums=True, fp8=True
        ),
        replace(long, fp8=True),
        replace(long, padded_vocab=True),
        replace(long, fused_qkv=True),
        replace(long, micro_tokens=65_536),
        replace(long, compile=False),
        replace(long, attention="padded"),
        replace(peer, attention="best"),
        replace(short, micro_tokens=131_072),
        replace(short, global_batch=256),
        replace(long, micro_tokens=16_384),
        replace(long, dropout=0.0),
        replace(long, recompute=True),
        replace(short, micro_tokens=65_536),
        replace(long, system="plain"),
        replace(long, optimizer="lamb"),
        replace(short, fused_qkv=True, padded_vocab=True),
        replace(short, compile=False),
        replace(long, zero_stage=2),
        replace(short, recompute=True),
    ]


def cpu_cases(seq_lens: Sequence[int]) -> list[Case]:
    """The same systems where generated code takes longer to make than it saves: for tests of all but speed."""
    first = [Case("ours", length, 4, micro_tokens=2 * length, compile=False) for length in seq_lens]
    base = first[0]
    return [
        *first,
        replace(base, system="transformers", attention="sdpa"),
        replace(base, system="plain"),
        replace(base, optimizer="lamb"),
        replace(base, fused_qkv=True, padded_vocab=True),
        replace(base, fp8=True),
        replace(base, recompute=True),
        replace(base, attention="padded", dropout=0.0),
        replace(base, zero_stage=2),
    ]


def _kind(case: Case) -> tuple[str, bool, str]:
    """Cases that cost about as much: compiling is most of it."""
    return case.system, case.compile, case.attention


class Budget:
    """Time that may be spent, and what each kind of case has cost so far."""

    def __init__(
        self, seconds: float, guess: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts the clock.

        Args:
            seconds: In all.
            guess: What a case costs as long as none of its kind has run.
            clock: Seconds that only grow.
        """
        self._clock, self._guess = clock, guess
        self._end = clock() + seconds
        self._most: dict[Any, float] = {}

    @property
    def seconds_left(self) -> float:
        """Until the end; negative after it."""
        return self._end - self._clock()

    def expects(self, case: Case) -> float:
        """Seconds the case will take: the most that one of its kind has taken, and some room."""
        return ROOM * self._most.get(_kind(case), self._guess)

    def note(self, case: Case, seconds: float) -> None:
        """Takes in what a case has cost."""
        kind = _kind(case)
        self._most[kind] = max(seconds, self._most.get(kind, 0.0))

    def spend(
        self, cases: Iterable[Case], run: Callable[[Case], Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """A row for each case: what `run` returned, or why it was not run; a later, cheaper one may still fit."""
        for case in cases:
            row: dict[str, Any] = {"name": case.name, "case": asdict(case)}
            expected, left = self.expects(case), self.seconds_left
            if expected > left:
                yield row | {
                    "not_run": f"{max(0.0, left):.0f} s were left, {expected:.0f} s were expected"
                }
                continue
            began = self._clock()
            found = run(case)
            self.note(case, self._clock() - began)
            yield row | {"seconds_in_all": round(self._clock() - began, 1)} | dict(found)
