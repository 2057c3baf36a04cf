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


def instances_a_pass(mixture: Mixture, seq_len: int) -> int:
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


def lengthen_phases(settings: PretrainSettings, a_pass: Sequence[int]) -> list[Phase]:
    """Returns the phases with their steps scaled so that together they make `settings.epochs`.

    Args:
        settings: The settings of the run. If `epochs` is None, the phases are not changed.
        a_pass: For each phase the number of instances of an epoch, from `instances_a_pass`.
    """
    if settings.epochs is None:
        return settings.phases
    pairs = zip(settings.phases, a_pass, strict=True)
    epochs = sum(phase.steps * phase.global_batch / size for phase, size in pairs)
    factor = settings.epochs / epochs
    return [replace(phase, steps=max(1, round(phase.steps * factor))) for phase in settings.phases]
