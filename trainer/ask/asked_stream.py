"""Opens the streams of a run, to find out which instances each of its steps read.

All phases of one length read one stream, one after another: the train instances of that length in a
fixed order. A step reads the instances from its position in the stream on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from pipeline.shards.block import block_instances
from trainer.ask.asked_run import NO_WAIT, AskedRun
from trainer.ask.made_steps import Anomaly, MadeSteps
from trainer.guards.spike_guard import MOST_SKIPPED
from trainer.stream.known import KnownPasses
from trainer.stream.order.order import StreamOrder, Stretch
from trainer.stream.order.share import Rows, default_num_lanes, plan_steps
from trainer.stream.order.state import StreamState, merge_stretches
from trainer.stream.order.stretches import next_stretches

_WHOLE_SHARD = 1 << 62
"""A block size that is so large that every shard is a single block."""
_PLANNED_STEPS = 64
"""The number of steps that are planned together."""


@dataclass(frozen=True)
class AskedStream:
    """The stream of all phases of one length.

    Attributes:
        run: The run.
        seq_len: The length of the instances.
        passes: The passes of the datasets, which know the shards of each pass.
        state: The state of the stream in the newest checkpoint, or at the beginning if there is
            none. It names all positions that the run skips, even those it began to skip later.
        made: The steps that the phases of this length have made.
    """

    run: AskedRun
    seq_len: int
    passes: KnownPasses
    state: StreamState
    made: MadeSteps

    @property
    def order(self) -> StreamOrder:
        """The order of the stream."""
        return self.passes.order(self.state)

    def global_batch(self, index: int) -> int:
        """Returns the number of instances of a step.

        Args:
            index: The index of the step in `made`.
        """
        return self.run.settings.phases[int(self.made.phase[index])].global_batch

    def plan(
        self, indices: Sequence[int], block_size: int = _WHOLE_SHARD
    ) -> Iterator[tuple[int, Rows]]:
        """Yields which instances each step read, lazily.

        Args:
            indices: The steps, as ascending indices in `made`.
            block_size: Number of instances of a block, see `plan_whole`.

        Yields:
            The index of each step, and the instances of its global batch as `plan_whole` yields
            them.

        Raises:
            ValueError: The positions in metrics.jsonl are not those of the order.
        """
        for global_batch, group in groupby(indices, self.global_batch):
            members = list(group)
            for first in range(0, len(members), _PLANNED_STEPS):
                chunk = members[first : first + _PLANNED_STEPS]
                for index in chunk:
                    self._check_place(index)
                positions = self.made.position[chunk].tolist()
                yield from zip(
                    chunk, plan_whole(self.order, positions, global_batch, block_size), strict=True
                )

    def _check_place(self, index: int) -> None:
        """Checks that a step and the next one begin at the positions that the order gives them.

        Args:
            index: The index of the step in `made`.

        Raises:
            ValueError: metrics.jsonl has other positions.
        """
        stretches = next_stretches(
            self.order, int(self.made.position[index]), self.global_batch(index)
        )
        places = [(index, stretches[0][0])]
        if index + 1 < len(self.made):
            places.append((index + 1, next_stretches(self.order, stretches[-1][1], 1)[0][0]))
        for number, expected in places:
            position = int(self.made.position[number])
            if position != expected:
                raise ValueError(
                    f"{self.run.name}/metrics.jsonl: step {int(self.made.step[number])} begins at"
                    f" position {position}, expected {expected} by the run's settings and state; a"
                    " file of the run was changed, or belongs to another"
                )


def open_stream(run: AskedRun, seq_len: int) -> AskedStream:
    """Opens the stream of all phases of one length.

    Args:
        run: The run.
        seq_len: A length of its phases.

    Raises:
        FileNotFoundError: A dataset lacks a pass that the run has read.
        ValueError: A dataset has no instances of this length, or its content differs from what the
            run has read.
    """
    try:
        return _open_stream(run, seq_len)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{run.name} has read more passes of length {seq_len} than its datasets hold now;"
            f" restore them, or build them again ({error})"
        ) from error


def _open_stream(run: AskedRun, seq_len: int) -> AskedStream:
    """Opens a stream, as `open_stream` does.

    Raises:
        FileNotFoundError: A dataset lacks a pass. The message does not say yet that it is the run
            that has read it.
        ValueError: As for `open_stream`.
    """
    settings = run.settings
    phases = settings.phases_of(seq_len)
    made = run.made.of_phases(phases)
    passes = KnownPasses(run.mixture, "train", seq_len, NO_WAIT, run.left_out)
    saved = run.states.get(str(seq_len))
    if saved is None:
        num_lanes = default_num_lanes(
            settings.phases[phases[0]].global_batch,
            passes.first_pass_instances,
            block_instances(seq_len),
        )
        saved = passes.state(0, settings.seed, num_lanes)
    passes.wait_for(saved.position)
    _refuse_other_data(run, passes, saved)
    stretches = [*saved.skipped, *settings.skipped(*phases)]
    stretches += [stretch for phase, stretch in rollbacks(run.anomalies) if phase in phases]
    state = replace(saved, skipped=merge_stretches(_without_contradicted(stretches, made)))
    if len(made):
        # The last step may jump over positions that are skipped, and so end in a pass in which no
        # step begins. This makes sure that the pass is known as well.
        global_batch = settings.phases[int(made.phase[-1])].global_batch
        passes.next_stretches(state, int(made.position[-1]), global_batch, may_wait=True)
    return AskedStream(run, seq_len, passes, state, made)


def rollbacks(anomalies: Sequence[Anomaly]) -> list[tuple[int, Stretch]]:
    """Returns the stretches of positions that a run has skipped since it went back.

    A run goes back to a checkpoint after `MOST_SKIPPED` steps in a row whose gradients were not
    used. It then skips all positions of these steps.

    Args:
        anomalies: The steps whose gradients were not used, in the order in which they were made.

    Returns:
        For each time that the run went back, the phase and the stretch: the first position, and one
        past the last position.
    """
    found = []
    start = 0
    for anomaly in anomalies:
        if anomaly.in_a_row == 1:
            start = anomaly.start
        if anomaly.in_a_row >= MOST_SKIPPED:
            found.append((anomaly.phase, (start, anomaly.stop)))
    return found


def plan_whole(
    order: StreamOrder, positions: Sequence[int], global_batch: int, block_size: int = _WHOLE_SHARD
) -> Iterator[Rows]:
    """Yields the instances of each of several global batches, as if one rank read all of a batch.

    Instances are given as ranges of rows of shards. The ranges follow the order of the slots, which
    are the numbers of the instances in the batch: slot 0 is the first row of the first range.

    Args:
        order: The order of the stream.
        positions: The stream position at which each batch begins.
        global_batch: Number of instances of each batch.
        block_size: Number of instances of a block. A range ends at the end of its block, and
            `Rows.start` and `Rows.stop` count from the start of that block. By default every shard
            counts as one block, so that they count from the start of the shard.

    Yields:
        The ranges of one batch.
    """
    rows, bounds = plan_steps(
        order, positions, global_batch, rank=0, world_size=1, block_size=block_size
    )
    for number in range(len(positions)):
        of_step = slice(int(bounds[number]), int(bounds[number + 1]))
        yield Rows(*(column[of_step] for column in rows))


def _without_contradicted(stretches: Sequence[Stretch], made: MadeSteps) -> list[Stretch]:
    """Returns the stretches that the run can really have skipped: those in which no step begins.

    Args:
        stretches: Stretches of positions that the run may have skipped.
        made: The steps that were made.
    """
    bounds = np.searchsorted(made.position, np.array(stretches, np.int64).reshape(-1, 2))
    return [
        stretch
        for stretch, (first, stop) in zip(stretches, bounds.tolist(), strict=True)
        if first == stop
    ]


def _refuse_other_data(run: AskedRun, passes: KnownPasses, saved: StreamState) -> None:
    """Checks that the data which the run had read at its newest checkpoint have not changed since.

    Args:
        run: The run.
        passes: The passes of the datasets as they are now.
        saved: The state of the stream in the checkpoint.

    Raises:
        ValueError: The passes of a dataset have another content than the checkpoint says.
    """
    weights = [dataset.weight for dataset in saved.datasets]
    now = passes.describe(saved.position, weights)
    for source, then, current in zip(run.mixture, saved.datasets, now, strict=True):
        if then != current:
            raise ValueError(
                f"{source.dataset.url} is not the dataset {source.name} that {run.name} was trained"
                f" on: {current.passes} passes with content {current.content}, the newest"
                f" checkpoint says {then.passes} with {then.content}; --data says where that"
                " dataset is"
            )
