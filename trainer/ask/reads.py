"""Finds the steps of a run that read given documents."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from pipeline.shards.document_index import Found, open_document_index
from trainer.ask.asked_run import AskedRun
from trainer.ask.asked_stream import AskedStream, open_stream
from trainer.stream.order.inverse import positions_in_epoch
from trainer.stream.order.order import locate, own_position
from trainer.stream.order.share import Rows
from trainer.stream.order.stretches import next_stretches


@dataclass(frozen=True)
class Read:
    """One time that a step read an instance which holds a given document.

    If the run continues another run, a step of that other run may have read the instance. The step,
    the phase and the slot are then None.

    Attributes:
        document: The first 64 bits of the document's id.
        step: The number of the step over the whole run, or None.
        phase: The index of the step's phase, or None.
        seq_len: The length of the instance in tokens.
        position: The position of the instance in the stream.
        slot: The number of the instance in the step's global batch, from 0, or None.
        dataset: The name of the dataset that the instance is from.
        epoch: The epoch of that dataset, from 0.
        pass_index: The pass of the dataset that the epoch reads.
        shard: The shard's path, relative to the dataset.
        row: The row of the instance in the shard.
        is_a: Whether segment A is from the document.
        is_b: Whether segment B is from the document. Both are true if B follows A. If instances
            have one segment, it is false.
    """

    document: int
    step: int | None
    phase: int | None
    seq_len: int
    position: int
    slot: int | None
    dataset: str
    epoch: int
    pass_index: int
    shard: str
    row: int
    is_a: bool
    is_b: bool


DocumentKey = tuple[int, int]
"""The index of a dataset in the mixture, and the first 64 bits of a document's id."""


def find_all_reads(
    run: AskedRun,
    documents: Mapping[int, Sequence[int]],
    cache_dir: str | None,
    say: Callable[[str], object],
) -> tuple[dict[DocumentKey, list[Read]], Counter[DocumentKey]]:
    """Finds the instances that hold some documents, and each time that a step read one of them.

    Args:
        run: The run.
        documents: The documents to look for in each dataset, by the index of the dataset in the
            mixture. A document is given by the first 64 bits of its id.
        cache_dir: The folder for the index from documents to instances; None for the default.
        say: Called with messages about the progress of building the index.

    Returns:
        The reads of each document, in the order of steps; and the number of instances of the train
        split that hold each document. That number counts the instances of all lengths that the
        phases of the run have, whether a step read them or not.

    Raises:
        ValueError: The positions in metrics.jsonl are not those of the order.
    """
    reads: dict[DocumentKey, list[Read]] = {}
    num_instances: Counter[DocumentKey] = Counter()
    stream = lru_cache(maxsize=None)(partial(open_stream, run))
    lengths = dict.fromkeys(phase.seq_len for phase in run.settings.phases)
    for dataset, ids in documents.items():
        if not ids:
            continue
        index = open_document_index(run.mixture[dataset].dataset, "train", cache_dir, say)
        for seq_len in lengths:
            phases = run.settings.phases_of(seq_len)
            # If a dataset is still being built, opening the stream finds out which passes it has.
            of_length = stream(seq_len) if len(run.made.of_phases(phases)) else None
            found = index.find(np.array(sorted({*ids}), np.uint64), [seq_len])
            num_instances.update((dataset, document) for document in found.document.tolist())
            for read in find_reads(of_length, dataset, found) if of_length else ():
                reads.setdefault((dataset, read.document), []).append(read)
    for of_document in reads.values():
        of_document.sort(key=lambda read: (read.step or 0, read.slot or 0))
    return reads, num_instances


def find_reads(stream: AskedStream, dataset: int, found: Found) -> list[Read]:
    """Returns one `Read` for each time that a step read one of the given instances.

    The reads are sorted by step, and within a step by slot, the instance's number in the batch.

    Args:
        stream: The stream whose steps are looked at.
        dataset: The index of a dataset in the mixture.
        found: The instances to look for. They are from the train split of that dataset, and have
            the stream's length.
    """
    if not len(found) or not len(stream.made):
        return []
    candidates = [
        candidate
        for epoch in range(_num_epochs(stream, dataset))
        for candidate in _in_epoch(stream, dataset, epoch, found)
    ]
    return sorted(_confirmed(stream, dataset, found, candidates), key=_order_of)


@dataclass(frozen=True)
class _Candidate:
    """A possible read, which `_confirmed` checks: an instance and the step that may have read it.

    The step has read the instance unless the run skips the instance's position, or the step ends
    before it.

    Attributes:
        made: The index in `AskedStream.made` of the step, which is the last one that begins at or
            before the position; -1 if every step begins after the position.
        position: The stream position of the instance.
        epoch: The epoch of the dataset.
        shard: The index of the instance's shard in its pass.
        number: The index of the instance in the `Found` that was searched.
    """

    made: int
    position: int
    epoch: int
    shard: int
    number: int


def _num_epochs(stream: AskedStream, dataset: int) -> int:
    """Returns how many epochs of a dataset the steps of a stream have begun to read.

    Args:
        stream: The stream.
        dataset: The index of the dataset in the mixture.
    """
    last = len(stream.made) - 1
    position = int(stream.made.position[last])
    end = next_stretches(stream.order, position, stream.global_batch(last))[-1][1]
    own_end = own_position(stream.order.weights, dataset, end)
    if not own_end:
        return 0
    epoch, _ = locate(stream.order.pass_instances[dataset], own_end - 1)
    return epoch + 1


def _in_epoch(stream: AskedStream, dataset: int, epoch: int, found: Found) -> Iterator[_Candidate]:
    """Yields a candidate for each instance that one epoch of a dataset reads.

    An epoch reads one pass of the dataset, so the instances of other passes are left out. The
    epoch has each instance of its pass at one position of the stream.

    Args:
        stream: The stream.
        dataset: The index of the dataset in the mixture.
        epoch: The number of the epoch.
        found: The instances to look for, of all passes of the dataset.
    """
    passes = stream.order.datasets[dataset]
    pass_index = epoch % len(passes)
    numbers = np.flatnonzero(found.pass_index == pass_index)
    if not len(numbers):
        return
    place = {shard.name: place for place, shard in enumerate(passes[pass_index])}
    all_shards = stream.run.mixture[dataset].dataset.all_shards
    shard = np.array([place[all_shards[index].name] for index in found.shard[numbers].tolist()])
    positions = positions_in_epoch(stream.order, dataset, epoch, shard, found.row[numbers])
    made = np.searchsorted(stream.made.position, positions, side="right") - 1
    columns = (made, positions, shard, numbers)
    for of_step, position, of_pass, number in zip(*(c.tolist() for c in columns), strict=True):
        yield _Candidate(of_step, position, epoch, of_pass, number)


def _confirmed(
    stream: AskedStream, dataset: int, found: Found, candidates: Sequence[_Candidate]
) -> Iterator[Read]:
    """Yields the reads among candidates.

    To check a candidate, it is planned again which instances the candidate's step read. A candidate
    before the first step of this run was read by the run that this run continues, if there is such
    a run and if the stream does not skip the position.

    Args:
        stream: The stream.
        dataset: The index of the dataset in the mixture.
        found: The instances that the candidates name.
        candidates: The candidates, in any order.
    """
    by_step: dict[int, list[_Candidate]] = {}
    for candidate in candidates:
        by_step.setdefault(candidate.made, []).append(candidate)
    for candidate in by_step.pop(-1, ()):
        position = candidate.position
        if stream.run.trunk and next_stretches(stream.order, position, 1)[0][0] == position:
            yield _as_read(stream, dataset, found, candidate, None)
    for made, rows in stream.plan(sorted(by_step)):
        for candidate in by_step[made]:
            slot = _find_slot(rows, dataset, candidate, int(found.row[candidate.number]))
            if slot is not None:
                yield _as_read(stream, dataset, found, candidate, slot)


def _find_slot(rows: Rows, dataset: int, candidate: _Candidate, row: int) -> int | None:
    """Returns the slot of an instance in a global batch; None if the batch does not have it.

    Args:
        rows: The instances of the batch, as ranges of rows of shards (`AskedStream.plan`).
        dataset: The index of the dataset in the mixture.
        candidate: The instance.
        row: The row of the instance in its shard.
    """
    is_here = (rows.dataset == dataset) & (rows.epoch == candidate.epoch)
    is_here &= (rows.shard == candidate.shard) & (rows.start <= row) & (row < rows.stop)
    hits = np.flatnonzero(is_here)
    if not len(hits):
        return None
    lengths = rows.stop - rows.start
    return int(lengths[: hits[0]].sum()) + row - int(rows.start[hits[0]])


def _as_read(
    stream: AskedStream, dataset: int, found: Found, candidate: _Candidate, slot: int | None
) -> Read:
    """Returns the record of a read.

    Args:
        stream: The stream.
        dataset: The index of the dataset in the mixture.
        found: The instances that candidates name.
        candidate: The instance that was read.
        slot: The instance's place in the global batch; None if the run that this one continues
            made the step.
    """
    number = candidate.number
    source = stream.run.mixture[dataset]
    is_own = slot is not None
    return Read(
        document=int(found.document[number]),
        step=int(stream.made.step[candidate.made]) if is_own else None,
        phase=int(stream.made.phase[candidate.made]) if is_own else None,
        seq_len=stream.seq_len,
        position=candidate.position,
        slot=slot,
        dataset=source.name,
        epoch=candidate.epoch,
        pass_index=int(found.pass_index[number]),
        shard=source.dataset.all_shards[int(found.shard[number])].name,
        row=int(found.row[number]),
        is_a=bool(found.is_a[number]),
        is_b=bool(found.is_b[number]),
    )


def _order_of(read: Read) -> tuple[int, int, int, int]:
    """Returns the key by which reads are sorted: step, slot, position and document.

    Reads by the run that this one continues, whose step and slot are None, are the first.
    """
    return read.step or 0, read.slot or 0, read.position, read.document
