"""Reads the instances of a step, with the masks that the step saw.

The instances are in the order of their slots, which are their numbers in the step's global batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from pipeline.shards.block import Array, Block, block_instances, concatenate_blocks
from pipeline.shards.dataset import read_block
from pipeline.shards.records import Shard
from pipeline.storage.ahead import map_ahead
from trainer.ask.asked_run import AskedRun
from trainer.ask.asked_stream import AskedStream, open_stream, plan_whole, rollbacks
from trainer.ask.made_steps import Anomaly
from trainer.stream.batches.redraw import MaskRedraw, StepInstances, restore_text
from trainer.stream.order.share import Rows
from trainer.stream.order.state import merge_stretches
from trainer.stream.order.stretches import next_stretches

LEFT_TO_RIGHT = "left-to-right"
"""The value of the setting `objective` with which no token is masked."""
_AT_ONCE = 8
_KEPT_BLOCKS = 512
"""The number of blocks that stay in memory, because later steps read further rows of them.

They take at most some 200 MB.
"""


@dataclass(frozen=True)
class StepContent:
    """The N instances that one step read, in the order of their slots.

    Attributes:
        step: The number of the step over the whole run.
        phase: The index of the step's phase.
        seq_len: The length of the instances in tokens.
        position: The stream position of the first instance.
        anomaly: Why the step's gradient was not used; None if it was used.
        is_undone: Whether the run has undone the step, because it went back to a checkpoint before
            the step.
        dataset: The index of each instance's dataset in the mixture, int64 [N].
        epoch: The epoch of that dataset in which each instance was read, int64 [N].
        shard: The shard of each instance.
        row: The row of each instance in its shard, int64 [N].
        block: The tokens of the instances, with the masks that the step saw.
    """

    step: int
    phase: int
    seq_len: int
    position: int
    anomaly: Anomaly | None
    is_undone: bool
    dataset: Array
    epoch: Array
    shard: list[Shard]
    row: Array
    block: Block


class StepReader:
    """Reads the instances of steps of a run.

    Blocks of shards are kept in memory, so a block that several steps have read is usually read
    only once here.
    """

    def __init__(self, run: AskedRun) -> None:
        """Remembers the run, whose streams and shards are opened when they are first needed.

        Args:
            run: The run.
        """
        self._run = run
        self._stream = lru_cache(maxsize=None)(partial(open_stream, run))
        self._redraw = lru_cache(maxsize=None)(self._open_redraw)
        self._block = lru_cache(maxsize=_KEPT_BLOCKS)(self._read_block)

    def read(self, steps: Sequence[int]) -> Iterator[StepContent]:
        """Yields what some steps read, lazily.

        If the run has undone a step and made another one of the same number, the later one is
        yielded.

        Args:
            steps: Ascending numbers of steps over the whole run.

        Raises:
            FileNotFoundError: A shard is missing.
            ValueError: A step was not made by this run, or a file is damaged.
        """
        self.refuse_not_made(steps)
        for step in steps:
            made = self._run.made.find(step)
            assert made is not None, "it was refused"
            phase = int(self._run.made.phase[made])
            position = int(self._run.made.position[made])
            stream = self._stream(self._run.settings.phases[phase].seq_len)
            index = stream.made.find(step)
            assert index is not None, "the stream has the steps of its phases"
            [(_, rows)] = stream.plan([index], block_instances(stream.seq_len))
            anomaly = self._run.refused.get(step)
            yield self._content(stream, step, phase, position, rows, anomaly, is_undone=False)

    def read_refused(self, step: int | None = None) -> Iterator[StepContent]:
        """Yields what the steps read whose gradients were not used, lazily.

        They are in the order in which they were made. Steps that the run has undone are among them.

        Args:
            step: The number of the steps to yield; None yields steps of all numbers.

        Raises:
            FileNotFoundError: A shard is missing.
            ValueError: A file is damaged, or the positions of a step are not those of its stream.
        """
        for number, anomaly in enumerate(self._run.anomalies):
            if step not in (None, anomaly.step):
                continue
            if self._run.refused.get(anomaly.step) is anomaly:
                yield from self.read([anomaly.step])
                continue
            phase = self._run.settings.phases[anomaly.phase]
            stream = _as_it_was(self._stream(phase.seq_len), number)
            [rows] = plan_whole(
                stream.order,
                [anomaly.start],
                phase.global_batch,
                block_instances(phase.seq_len),
            )
            yield self._content(
                stream, anomaly.step, anomaly.phase, anomaly.start, rows, anomaly, is_undone=True
            )

    def refuse_not_made(self, steps: Sequence[int]) -> None:
        """Checks that this run has made some steps.

        Args:
            steps: The numbers of the steps over the whole run.

        Raises:
            ValueError: A step was not made, or was made by the run that this run continues.
        """
        made = self._run.made
        name = self._run.name
        trunk = self._run.trunk
        for step in steps:
            if made.find(step) is not None:
                continue
            if trunk is not None and step <= trunk[1]:
                raise ValueError(
                    f"step {step:,} of {name} was made by the run that it continues: ask {trunk[0]}"
                )
            last = f"its last step is {int(made.step[-1]):,}" if len(made) else "it has no step yet"
            raise ValueError(f"{name} has not made step {step:,}: {last}")

    def _content(
        self,
        stream: AskedStream,
        step: int,
        phase: int,
        position: int,
        rows: Rows,
        anomaly: Anomaly | None,
        *,
        is_undone: bool,
    ) -> StepContent:
        """Reads the instances of a step, and draws their masks as the run did.

        Args:
            stream: The stream of the step.
            step: The number of the step over the whole run.
            phase: The index of the step's phase.
            position: The stream position of the step's first instance.
            rows: The instances of the step, as ranges of rows of blocks.
            anomaly: Why the step's gradient was not used; None if it was used.
            is_undone: Whether the run has undone the step.
        """
        passes = stream.order.datasets
        block_size = block_instances(stream.seq_len)
        shards = [
            passes[dataset][epoch % len(passes[dataset])][shard]
            for dataset, epoch, shard in zip(
                rows.dataset.tolist(), rows.epoch.tolist(), rows.shard.tolist(), strict=True
            )
        ]
        block = self._read_rows(rows, shards)
        redraw = self._redraw(phase)
        if redraw is not None:
            steps_before = sum(earlier.steps for earlier in self._run.settings.phases[:phase])
            of_step = StepInstances(step - 1 - steps_before, position, block.num_instances)
            block = redraw(block, [of_step])
        if self._run.settings.objective == LEFT_TO_RIGHT:
            block = _without_masks(block)

        lengths = rows.stop - rows.start
        number_of_range = np.repeat(np.arange(len(lengths)), lengths)
        place_in_range = np.arange(len(number_of_range)) - np.repeat(
            np.cumsum(lengths) - lengths, lengths
        )
        first_row = rows.block * block_size + rows.start
        return StepContent(
            step=step,
            phase=phase,
            seq_len=stream.seq_len,
            position=position,
            anomaly=anomaly,
            is_undone=is_undone,
            dataset=rows.dataset[number_of_range],
            epoch=rows.epoch[number_of_range],
            shard=[shards[number] for number in number_of_range.tolist()],
            row=first_row[number_of_range] + place_in_range,
            block=block,
        )

    def _read_rows(self, rows: Rows, shards: Sequence[Shard]) -> Block:
        """Reads the instances of a step, and returns them as one block, in the order of `rows`.

        Args:
            rows: The instances, as ranges of rows of blocks. Each range is within one block.
            shards: The shard of each range.
        """
        datasets = rows.dataset.tolist()
        keys = zip(datasets, shards, rows.block.tolist(), strict=True)
        blocks = map_ahead(lambda key: self._block(*key), keys, _AT_ONCE)
        ranges = zip(blocks, rows.start.tolist(), rows.stop.tolist(), strict=True)
        return concatenate_blocks([block.slice(start, stop) for block, start, stop in ranges])

    def _open_redraw(self, phase: int) -> MaskRedraw | None:
        """Returns the `MaskRedraw` that draws the masks of a phase as the run did.

        The result is None if the run kept the masks of the dataset.

        Args:
            phase: The index of the phase.
        """
        settings = self._run.settings
        if settings.mask_shares is None:
            return None
        datasets = [source.dataset for source in self._run.mixture]
        seq_len = settings.phases[phase].seq_len
        return MaskRedraw(datasets, seq_len, settings.seed, partial(settings.mask_share, phase))

    def _read_block(self, dataset: int, shard: Shard, number: int) -> Block:
        """Reads one block of a shard.

        Args:
            dataset: The index of the shard's dataset in the mixture.
            shard: The shard.
            number: The index of the block in the shard.
        """
        return read_block(self._run.mixture[dataset].dataset, shard, number)


def _without_masks(block: Block) -> Block:
    """Returns a block with its original tokens, none of which is masked."""
    nothing = {
        "masked_lm_positions": block.masked_lm_positions[:0],
        "masked_lm_ids": block.masked_lm_ids[:0],
        "masked_offsets": np.zeros_like(block.masked_offsets),
    }
    return replace(restore_text(block), **nothing)


def _as_it_was(stream: AskedStream, number: int) -> AskedStream:
    """Returns a stream as it was when the run made a step that it has undone since.

    When the run undid the step, it began to skip the step's positions. The returned stream does not
    skip them yet. It skips only the positions that the run skipped before.

    Args:
        stream: The stream as it is now.
        number: The number of the step among the run's anomalies.

    Raises:
        ValueError: The step's positions are not those of the stream.
    """
    run = stream.run
    anomaly = run.anomalies[number]
    phases = run.settings.phases_of(stream.seq_len)
    elsewhere = [
        (start, stop)
        for start, stop in stream.state.skipped
        if stop <= anomaly.start or anomaly.stop <= start
    ]
    earlier = [stretch for phase, stretch in rollbacks(run.anomalies[:number]) if phase in phases]
    asked_for = run.settings.skipped(*phases)
    global_batch = run.settings.phases[anomaly.phase].global_batch
    for others in ([*earlier, *asked_for], earlier, asked_for, []):
        skipped = merge_stretches([*elsewhere, *others])
        then = replace(stream, state=replace(stream.state, skipped=skipped))
        stretches = next_stretches(then.order, anomaly.start, global_batch)
        if (stretches[0][0], stretches[-1][1]) == (anomaly.start, anomaly.stop):
            return then
    raise ValueError(
        f"{run.name}/anomalies.jsonl: step {anomaly.step} has the positions"
        f" {anomaly.start}-{anomaly.stop}, which are not those of {global_batch} instances of the"
        " run's stream; a file of the run was changed, or belongs to another"
    )
