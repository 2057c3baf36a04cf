"""Refuses datasets from which the objective of a run cannot be learned."""

from pipeline.shards.instance_kind import INSTANCES, SEGMENT_PAIRS, has_pairs
from trainer.settings import PretrainSettings
from trainer.stream.order.source import Mixture


def refuse_single_segments(settings: PretrainSettings, mixture: Mixture) -> None:
    """Refuses instances of one segment if a run is to learn next sentence prediction.

    Args:
        settings: The settings of the run.
        mixture: The datasets of the run.

    Raises:
        ValueError: The objective is "mlm+nsp", and a dataset has instances of one segment.
    """
    if settings.objective != "mlm+nsp":
        return
    for source in mixture:
        of_dataset = source.dataset.manifest.settings
        if not has_pairs(of_dataset):
            raise ValueError(
                f"{source.dataset.url}: its instances ({of_dataset[INSTANCES]}) have one segment,"
                f" from which next sentence prediction (objective {settings.objective}) cannot be"
                f" learned; give --objective mlm, or data built with --instances {SEGMENT_PAIRS}"
            )
