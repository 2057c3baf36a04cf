"""Refuses settings of a run that do not fit its datasets, its model or its number of ranks."""

from pipeline.shards.instance_kind import INSTANCES, SEGMENT_PAIRS, has_pairs
from trainer.model.config import BertConfig
from trainer.settings import PretrainSettings
from trainer.stream.order.source import Mixture


def check_mixture(settings: PretrainSettings, mixture: Mixture, world_size: int) -> BertConfig:
    """Returns the config of the model, with the size of the datasets' vocabulary.

    Args:
        settings: The settings of the run.
        mixture: The datasets of the run. If there are none, the model gets the size of BERT's
            vocabulary, and nothing is compared with data.
        world_size: Number of ranks.

    Raises:
        ValueError: A dataset has no pairs of segments, which the objective needs, or lacks the
            length of a phase; the model cannot read that length; or a batch is smaller than the
            number of ranks.
    """
    vocab_size = mixture[0].dataset.manifest.vocab_size if mixture else BertConfig.vocab_size
    config = settings.model_config(vocab_size)
    _refuse_single_segments(settings, mixture)
    _refuse_lacking_lengths(settings, mixture)
    _refuse_long_phases(settings, config)
    refuse_small_batches(settings, world_size)
    return config


def refuse_small_batches(settings: PretrainSettings, world_size: int) -> None:
    """Raises a ValueError if a phase has fewer instances in a step than there are ranks."""
    for index, phase in enumerate(settings.phases):
        if phase.global_batch < world_size:
            raise ValueError(
                f"phases.{index}.global_batch is {phase.global_batch} for {world_size} ranks; every"
                " rank needs at least one instance a step: raise it or take fewer ranks"
            )


def _refuse_single_segments(settings: PretrainSettings, mixture: Mixture) -> None:
    """Refuses instances of one segment if a run is to learn next sentence prediction."""
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


def _refuse_lacking_lengths(settings: PretrainSettings, mixture: Mixture) -> None:
    """Refuses datasets that have no train instances of a phase's length."""
    needed = {phase.seq_len for phase in settings.phases}
    for source in mixture:
        groups = source.dataset.manifest.groups
        existing = {group.seq_len for group in groups if group.split == "train"}
        missing = sorted(needed - existing)
        if missing:
            there = ", ".join(f"train L{length}" for length in sorted(existing))
            raise ValueError(
                f"{source.dataset.url}: no train instances of seq_len "
                f"{', '.join(map(str, missing))}; the dataset has {there}; build it with --seq_lens"
                f" {' '.join(map(str, sorted(needed | existing)))}, or choose other phases"
            )


def _refuse_long_phases(settings: PretrainSettings, config: BertConfig) -> None:
    """Refuses phases whose instances are longer than the model can read."""
    for index, phase in enumerate(settings.phases):
        if phase.seq_len > config.max_position_embeddings:
            raise ValueError(
                f"phases.{index}.seq_len is {phase.seq_len}, the model reads "
                f"{config.max_position_embeddings} tokens; raise "
                "model.overrides.max_position_embeddings"
            )
