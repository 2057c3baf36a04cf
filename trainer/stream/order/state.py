"""Where a stream stands, as a few plain numbers for a checkpoint (docs/order.md, rule 6)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainer.stream.order.order import Stretch

STATE_FORMAT = 2
MAX_STATE_BYTES = 1024
MAX_DATASETS = 20
CONTENT_DIGITS = 16


@dataclass(frozen=True)
class DatasetState:
    """What a stream has to know again of one of its datasets.

    Attributes:
        weight: Its weight in the mixture.
        passes: How many there are, or will be where the build is still running.
        content: Begin of the root hash (docs/format.md, section 4) of the passes begun so far.
    """

    weight: int
    passes: int
    content: str


@dataclass(frozen=True)
class StreamState:
    """Everything that the rest of the stream is a function of; sizes may change at any step.

    Attributes:
        position: Where the next step begins.
        num_lanes: K.
        skipped: Stretches [start, stop) of positions that no step takes, ascending and apart.
        datasets: What is read, in the mixture's order.
    """

    position: int
    seed: int
    num_lanes: int
    split: str
    seq_len: int
    skipped: tuple[Stretch, ...]
    datasets: tuple[DatasetState, ...]

    def skipping(self, stretches: Iterable[Stretch]) -> "StreamState":
        """The state that leaves out further stretches; a ValueError where they were consumed."""
        for start, stop in stretches:
            if not 0 <= start < stop:
                raise ValueError(
                    f"positions {start}-{stop} cannot be skipped: the first must be below the"
                    " second"
                )
            known = any(begin <= start and stop <= end for begin, end in self.skipped)
            if start < self.position and not known:
                raise ValueError(
                    f"positions {start}-{stop} cannot be skipped any more: training has come to"
                    f" position {self.position}; go back to a checkpoint before them by deleting"
                    " the newer ones"
                )
        state = replace(self, skipped=merge_stretches([*self.skipped, *stretches]))
        if (size := len(json.dumps(state.to_dict()))) > MAX_STATE_BYTES:
            raise ValueError(
                f"{len(state.skipped)} skipped stretches make the stream's state {size} bytes,"
                f" {MAX_STATE_BYTES} are allowed; join stretches that lie close together"
            )
        return state

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, at most MAX_STATE_BYTES of it."""
        columns = ("weight", "passes", "content")
        return {
            "format": STATE_FORMAT,
            **vars(self),
            "skipped": [list(each) for each in self.skipped],
            "datasets": {name: [getattr(each, name) for each in self.datasets] for name in columns},
        }


def merge_stretches(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """The same positions as ascending stretches that do not touch."""
    merged: list[Stretch] = []
    for start, stop in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


def parse_state(state: Mapping[str, Any]) -> StreamState:
    """Reads what `StreamState.to_dict` returned; a ValueError where it is no such state."""
    if state.get("format") != STATE_FORMAT:
        raise ValueError(
            f"stream state has format {state.get('format')!r}, this version reads {STATE_FORMAT}"
        )
    try:
        names = ("position", "seed", "num_lanes", "split", "seq_len")
        columns = [state["datasets"][name] for name in ("weight", "passes", "content")]
        return StreamState(
            **{name: state[name] for name in names},
            skipped=tuple((start, stop) for start, stop in state["skipped"]),
            datasets=tuple(DatasetState(*row) for row in zip(*columns, strict=True)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"stream state is damaged: {error!r} in {state}") from error


def refuse_other_stream(then: StreamState, now: StreamState, names: Iterable[str]) -> None:
    """Holds a stream, at the same position and over datasets of these names, to how it began.

    A ValueError names every difference.
    """

    def differences(of: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
        return [
            f"{key}{of} was {value}, is {after[key]}"
            for key, value in before.items()
            if after[key] != value and key not in ("position", "skipped", "datasets")
        ]

    changed = differences("", vars(then), vars(now))
    if len(then.datasets) == len(now.datasets):
        for name, before, after in zip(names, then.datasets, now.datasets, strict=True):
            changed += differences(f" of {name}", vars(before), vars(after))
    else:
        found = f"{len(now.datasets)} ({', '.join(names)})"
        changed.append(f"datasets were {len(then.datasets)}, are {found}")
    if changed:
        raise ValueError(
            f"this training cannot continue the stream it began: {'; '.join(changed)}. The order"
            " of the data depends on it: put it back, or begin a new run"
        )
