"""Converts a number of epochs over the data to steps of phases."""

from collections.abc import Sequence
from dataclasses import replace

from trainer.settings import Phase, PretrainSettings
from trainer.stream.order.source import Mixture, WeightedDataset


def main_of(mixture: Mixture) -> tuple[WeightedDataset, float]:
    """Returns the main dataset of a mixture, and the share of instances that are drawn from it.

    The main dataset is the first of those with the greatest weight. The share is between 0 and 1.
    """
    main = max(mixture, key=lambda source: source.weight)
    return main, main.weight / sum(source.weight for source in mixture)


def instances_per_pass(mixture: Mixture, seq_len: int) -> int:
    """Returns how many instances of a mixture are read during one pass over its main dataset.

    Args:
        mixture: The datasets with their weights.
        seq_len: The length of the instances.

    Raises:
        ValueError: The main dataset has no train instances of this length.
    """
    main, share = main_of(mixture)
    main.dataset.num_passes("train", seq_len)
    shards = main.dataset.shards("train", seq_len, 0)
    return round(sum(shard.instances for shard in shards) / share)


def lengthen_phases(settings: PretrainSettings, pass_sizes: Sequence[int]) -> list[Phase]:
    """Returns the phases with their steps scaled so that together they make `settings.epochs`.

    The steps of all phases are multiplied by the same factor and rounded, to at least 1.

    Args:
        settings: The settings of the run. If `epochs` is None, the phases are not changed.
        pass_sizes: For each phase the number of instances of an epoch of its length, as
            `instances_per_pass` returns it. Not looked at if `epochs` is None.
    """
    if settings.epochs is None:
        return settings.phases
    pairs = zip(settings.phases, pass_sizes, strict=True)
    epochs = sum(phase.steps * phase.global_batch / size for phase, size in pairs)
    factor = settings.epochs / epochs
    return [replace(phase, steps=max(1, round(phase.steps * factor))) for phase in settings.phases]
