"""Where a stream stands: the few numbers a checkpoint keeps (docs/order.md, rule 6). Imports pipeline.shards only."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import root_hash

STATE_FORMAT = 1


@dataclass(frozen=True)
class StreamData:
    """What a stream reads, by content.

    Attributes:
        split: train or validation.
        seq_len: Length the instances were made for.
        content_root: Root hash over the passes of this split and length, as in docs/format.md, section 4.
        pass_instances: N_i of every pass.
    """

    split: str
    seq_len: int
    content_root: str
    pass_instances: tuple[int, ...]


@dataclass(frozen=True)
class StreamState:
    """Everything that the rest of the stream is a function of, besides the sizes that may change at any step.

    Attributes:
        position: g0, instances consumed before the next step.
        seed: Of the shard order.
        num_lanes: K.
        skipped: Stretches [start, stop) of positions left out, after a rollback past bad data.
        datasets: What is read; one until mixtures.
    """

    position: int
    seed: int
    num_lanes: int
    skipped: tuple[tuple[int, int], ...]
    datasets: tuple[StreamData, ...]

    def after(self, num_instances: int) -> "StreamState":
        """The state once the next num_instances are consumed."""
        return replace(self, position=self.position + num_instances)

    def skipping(self, num_instances: int) -> "StreamState":
        """The state once the next num_instances are left out, which it remembers."""
        stretch = (self.position, self.position + num_instances)
        return replace(self.after(num_instances), skipped=(*self.skipped, stretch))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": STATE_FORMAT,
            "position": self.position,
            "seed": self.seed,
            "num_lanes": self.num_lanes,
            "skipped": [list(stretch) for stretch in self.skipped],
            "datasets": [{**vars(data), "pass_instances": list(data.pass_instances)} for data in self.datasets],
        }


def parse_state(state: Mapping[str, Any]) -> StreamState:
    """Reads what `StreamState.to_dict` returned.

    Raises:
        ValueError: Not a stream's state, or one of another format.
    """
    if state.get("format") != STATE_FORMAT:
        raise ValueError(f"stream state has format {state.get('format')!r}, this version reads {STATE_FORMAT}")
    try:
        return StreamState(
            position=state["position"],
            seed=state["seed"],
            num_lanes=state["num_lanes"],
            skipped=tuple((start, stop) for start, stop in state["skipped"]),
            datasets=tuple(
                StreamData(**{**data, "pass_instances": tuple(data["pass_instances"])}) for data in state["datasets"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"stream state is damaged: {error!r} in {state}") from error


def describe_data(dataset: Dataset, split: str, seq_len: int) -> StreamData:
    """What a stream of this split and length of a dataset reads.

    Raises:
        ValueError: The dataset has no such instances.
    """
    passes = [dataset.shards(split, seq_len, i) for i in range(dataset.num_passes(split, seq_len))]
    counts = tuple(sum(shard.instances for shard in shards) for shards in passes)
    if not sum(counts):
        raise ValueError(f"{dataset.url}: the shards of {split} L{seq_len} hold no instances")
    return StreamData(split, seq_len, root_hash(shard for shards in passes for shard in shards), counts)


def refuse_other_stream(state: StreamState, data: StreamData, seed: int, num_lanes: int | None, url: str) -> None:
    """Checks that a stream goes on as it began.

    Args:
        state: Where it stood.
        data: What would be read now.
        seed: The seed asked for now.
        num_lanes: The lanes asked for now; None takes the state's.
        url: The dataset, for the message.

    Raises:
        ValueError: It does not; the message names every difference.
    """
    [before] = state.datasets
    then = {**asdict(before), "seed": state.seed, "num_lanes": state.num_lanes}
    now = {**asdict(data), "seed": seed, "num_lanes": num_lanes or state.num_lanes}
    changed = [f"{name} was {then[name]}, is {now[name]}" for name in then if then[name] != now[name]]
    if changed:
        raise ValueError(
            f"{url} cannot continue the stream this training began: {'; '.join(changed)}. The order of the data"
            " depends on it: put it back, or begin a new phase or run"
        )
