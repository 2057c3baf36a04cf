"""Describes how far a stream has come, in plain numbers for checkpoints (docs/order.md, rule 6)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from trainer.stream.order.order import Stretch

STATE_FORMAT = 2
LEAVING_OUT_FORMAT = 3
"""The format of the states of streams that leave documents out. Earlier versions refuse it."""
MAX_STATE_BYTES = 1024
MAX_DATASETS = 20
CONTENT_DIGITS = 16
"""Number of hexadecimal digits of a root hash that a state keeps."""

_COMPARED_ELSEWHERE = ("position", "skipped", "datasets", "left_out")
_DATASET_COLUMNS = ("weight", "passes", "content")


class ListState(NamedTuple):
    """The part of a stream's state that is about the list of documents that the stream leaves out.

    Attributes:
        num_documents: How many documents from the beginning of the list the stream leaves out.
        digest: Hash of these documents, as `hash_documents` returns it.
    """

    num_documents: int
    digest: str


@dataclass(frozen=True)
class DatasetState:
    """The part of a stream's state by which a dataset is recognized when the stream goes on.

    Attributes:
        weight: Weight of the dataset in the mixture.
        passes: Number of passes of the dataset, including passes that are yet to be built.
        content: First CONTENT_DIGITS digits of the root hash (docs/format.md, section 4) of the
            passes that the stream has begun.
    """

    weight: int
    passes: int
    content: str


@dataclass(frozen=True)
class StreamState:
    """The state of a stream, from which it can go on.

    It decides which instances the steps still to come are made of. The sizes of a step
    (`StepSizes`) are not part of it, because they may change at any step.

    Attributes:
        position: Stream position where the next step begins.
        seed: Seed of the stream.
        num_lanes: The number of lanes K.
        split: The split that is read, such as "train".
        seq_len: The length of the instances that are read.
        skipped: Ranges of positions that no step takes. They ascend, and between two of them there
            is at least one position.
        datasets: The datasets, in the order of the mixture.
        left_out: The list of documents whose instances no step takes; None if there is none.
    """

    position: int
    seed: int
    num_lanes: int
    split: str
    seq_len: int
    skipped: tuple[Stretch, ...]
    datasets: tuple[DatasetState, ...]
    left_out: ListState | None = None

    def skipping(self, stretches: Iterable[Stretch]) -> "StreamState":
        """Returns a state that skips further stretches.

        Raises:
            ValueError: A stretch is empty or was consumed already, or the state would exceed
                MAX_STATE_BYTES.
        """
        for start, stop in stretches:
            if not 0 <= start < stop:
                raise ValueError(
                    f"positions {start}-{stop} cannot be skipped: the first must be below the"
                    " second"
                )
            is_skipped = any(begin <= start and stop <= end for begin, end in self.skipped)
            if start < self.position and not is_skipped:
                raise ValueError(
                    f"positions {start}-{stop} cannot be skipped any more: training has come to"
                    f" position {self.position}; go back to a checkpoint before them by deleting"
                    " the newer ones"
                )
        state = replace(self, skipped=merge_stretches([*self.skipped, *stretches]))
        num_bytes = len(json.dumps(state.to_dict()))
        if num_bytes > MAX_STATE_BYTES:
            raise ValueError(
                f"{len(state.skipped)} skipped stretches make the stream's state {num_bytes} bytes,"
                f" {MAX_STATE_BYTES} are allowed; join stretches that lie close together"
            )
        return state

    def to_dict(self) -> dict[str, Any]:
        """Returns the state as plain values, which take at most MAX_STATE_BYTES as JSON."""
        columns = {
            name: [getattr(dataset, name) for dataset in self.datasets] for name in _DATASET_COLUMNS
        }
        values = {
            "format": STATE_FORMAT,
            **vars(self),
            "skipped": [list(stretch) for stretch in self.skipped],
            "datasets": columns,
        }
        if self.left_out is None:
            del values["left_out"]
            return values
        return values | {"format": LEAVING_OUT_FORMAT, "left_out": list(self.left_out)}


def merge_stretches(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """Returns the same positions as stretches that ascend and neither overlap nor touch."""
    merged: list[Stretch] = []
    for start, stop in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


def parse_state(state: Mapping[str, Any]) -> StreamState:
    """Returns the stream's state that `StreamState.to_dict` has turned into plain values.

    Raises:
        ValueError: The values are not a stream's state, or are in another version's format.
    """
    if state.get("format") not in (STATE_FORMAT, LEAVING_OUT_FORMAT):
        raise ValueError(
            f"stream state has format {state.get('format')!r}, this version reads {STATE_FORMAT}"
            f" and {LEAVING_OUT_FORMAT}"
        )
    try:
        names = ("position", "seed", "num_lanes", "split", "seq_len")
        columns = [state["datasets"][name] for name in _DATASET_COLUMNS]
        left_out = None
        if state["format"] == LEAVING_OUT_FORMAT:
            num_documents, digest = state["left_out"]
            left_out = ListState(int(num_documents), str(digest))
        return StreamState(
            **{name: state[name] for name in names},
            skipped=tuple((start, stop) for start, stop in state["skipped"]),
            datasets=tuple(DatasetState(*values) for values in zip(*columns, strict=True)),
            left_out=left_out,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"stream state is damaged: {error!r} in {state}") from error


def refuse_other_stream(then: StreamState, now: StreamState, names: Iterable[str]) -> None:
    """Raises a ValueError if a run would continue another stream than the one it began.

    The message lists every difference.

    Args:
        then: The saved state.
        now: The state that today's settings and datasets have at the same position.
        names: Names of today's datasets, in the order of the mixture.
    """

    def differences(of: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
        return [
            f"{key}{of} was {value}, is {after[key]}"
            for key, value in before.items()
            if after[key] != value and key not in _COMPARED_ELSEWHERE
        ]

    changed = differences("", vars(then), vars(now))
    if len(then.datasets) == len(now.datasets):
        for name, before, after in zip(names, then.datasets, now.datasets, strict=True):
            changed += differences(f" of {name}", vars(before), vars(after))
    else:
        datasets_now = f"{len(now.datasets)} ({', '.join(names)})"
        changed.append(f"datasets were {len(then.datasets)}, are {datasets_now}")
    if changed:
        raise ValueError(
            f"this training cannot continue the stream it began: {'; '.join(changed)}. The order"
            " of the data depends on it: put it back, or begin a new run"
        )
