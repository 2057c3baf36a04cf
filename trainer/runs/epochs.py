"""Steps for passes over the data, for the plan and for a run."""

from collections.abc import Sequence
from dataclasses import replace

from trainer.settings import Phase, PretrainSettings
from trainer.stream.order.source import Mixture, WeightedDataset


def main_of(mixture: Mixture) -> tuple[WeightedDataset, float]:
    """The dataset of the greatest weight, and its share of a mixture's instances."""
    main = max(mixture, key=lambda each: each.weight)
    return main, main.weight / sum(each.weight for each in mixture)


def instances_a_pass(mixture: Mixture, seq_len: int) -> int:
    """Train instances of a length in a pass of the main dataset; a ValueError without any."""
    main, share = main_of(mixture)
    main.dataset.num_passes("train", seq_len)
    shards = main.dataset.shards("train", seq_len, 0)
    return round(sum(shard.instances for shard in shards) / share)


def lengthen_phases(settings: PretrainSettings, a_pass: Sequence[int]) -> list[Phase]:
    """Phases with steps for `epochs`, in proportion to their own, by `instances_a_pass` of each."""
    if settings.epochs is None:
        return settings.phases
    pairs = zip(settings.phases, a_pass, strict=True)
    factor = settings.epochs / sum(each.steps * each.global_batch / size for each, size in pairs)
    return [replace(each, steps=max(1, round(each.steps * factor))) for each in settings.phases]
