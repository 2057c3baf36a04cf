"""Measures a model on minimal pairs during training; all ranks share the work."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from tokenizers import Tokenizer
from torch import Tensor

from pipeline.storage.folder import parse_storage_options
from pipeline.storage.secret_values import hide
from trainer.conversion.names import TOKENIZER
from trainer.engine.zero import current_model
from trainer.minimal_pairs.accuracy import PairAccuracies, describe_mean, is_right, summarize
from trainer.minimal_pairs.read import EQUAL_PAIR, PairSet, read_pairs
from trainer.minimal_pairs.score import (
    EncodedPairs,
    ScoreBatch,
    cut_batches,
    empty_batch,
    encode_pairs,
    make_batch,
    sentence_sums,
    token_scores,
)
from trainer.model.config import BertConfig
from trainer.model.packed_inputs import PackedInputs
from trainer.process.ranks import Ranks, together
from trainer.runs.run_folder import RunFolder
from trainer.settings import PretrainSettings


@dataclass(frozen=True)
class ValidationPairs:
    """The minimal pairs that a run is measured on.

    Attributes:
        pair_set: The pairs as text.
        encoded: The pairs as ids.
    """

    pair_set: PairSet
    encoded: EncodedPairs


def read_validation_pairs(settings: PretrainSettings) -> PairSet | None:
    """Reads the minimal pairs that `validation.pairs` names; None if it is not set.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The pairs are malformed.
    """
    validation = settings.validation
    if validation.pairs is None:
        return None
    options = parse_storage_options(settings.storage_options)
    return read_pairs(validation.pairs, limit=validation.pairs_limit, storage_options=options)


def load_pairs(
    settings: PretrainSettings,
    folder: RunFolder,
    config: BertConfig,
    ranks: Ranks,
    say: Callable[[str], None],
) -> ValidationPairs | None:
    """Reads the minimal pairs that `validation.pairs` names, and encodes them.

    Rank 0 reads and encodes them, and sends them to all ranks.

    Args:
        settings: The settings of the run.
        folder: The run's folder, whose tokenizer encodes the sentences.
        config: The run's model.
        ranks: All ranks, which must call this together.
        say: Prints lines: how many tokens a measurement reads, and which pairs cannot be right
            because both sentences are equal.

    Returns:
        The pairs, the same on every rank; None if `validation.pairs` is not set.

    Raises:
        ValueError: The pairs are malformed or do not fit the model. It is raised on every rank.
    """
    if settings.validation.pairs is None:
        return None
    read: ValidationPairs | None = None
    with together(ranks):
        if ranks.rank == 0 and (pair_set := read_validation_pairs(settings)):
            encoded = encode_pairs(
                pair_set.pairs,
                Tokenizer.from_str(folder.read_vocabulary(TOKENIZER).decode()),
                config.max_position_embeddings,
                "original",
                is_causal=config.is_causal,
            )
            read = ValidationPairs(pair_set, encoded)
    pairs: ValidationPairs = ranks.from_first(read)
    count = f"{len(pairs.pair_set.pairs):,} minimal pairs"
    say(f"{count}: each measurement reads {pairs.encoded.num_read:,} tokens")
    for pair in pairs.pair_set.equal_pairs:
        say(hide(f"{pair.place}: {EQUAL_PAIR}"))
    return pairs


def measure_pairs(
    engine: Any, pairs: ValidationPairs, ranks: Ranks, micro_tokens: int
) -> tuple[dict[str, Any], str]:
    """Measures the model on minimal pairs; all ranks call this together.

    Args:
        engine: DeepSpeed's engine around the model.
        pairs: The pairs.
        ranks: All ranks.
        micro_tokens: The most tokens of a forward pass.

    Returns:
        Columns for metrics.jsonl, and a line of output; the same on every rank.
    """
    model = current_model(engine)
    model.eval()

    def predict(inputs: PackedInputs, positions_M: Tensor) -> Tensor:
        # ZeRO-3 gathers weights when a module is called, so the whole model has to be called.
        logits_MV: Tensor = model(inputs, positions_M)[0]
        return logits_MV

    encoded = pairs.encoded
    with torch.no_grad():
        share = _share_of(encoded, ranks, micro_tokens)
        scores = token_scores(predict, share, encoded.num_scores, ranks.device)
    model.train()
    # A token's score is 0 on all ranks but the one that predicted it.
    torch.distributed.all_reduce(scores, group=ranks.counts_group)
    sums = sentence_sums(encoded, scores)
    accuracies = summarize(pairs.pair_set, is_right(sums[encoded.good], sums[encoded.bad]))
    return pair_columns(accuracies), format_measurement(accuracies)


def _share_of(encoded: EncodedPairs, ranks: Ranks, micro_tokens: int) -> Iterator[ScoreBatch]:
    """Yields this rank's batches of sentences.

    Every rank gets the same number of batches, because under ZeRO-3 all ranks have to make a
    forward pass together. A rank that has one batch less than others gets an empty one at the end.
    """
    cuts = cut_batches(encoded, micro_tokens)
    for group, rows in cuts[ranks.rank :: ranks.world_size]:
        yield make_batch(group, rows, encoded.mask_id)
    if ranks.rank >= (len(cuts) - 1) % ranks.world_size + 1:
        yield empty_batch()


def pair_columns(accuracies: PairAccuracies) -> dict[str, Any]:
    """Returns the columns of metrics.jsonl about minimal pairs.

    They are the number of pairs and the accuracy over all pairs; the accuracy of each group; and
    the mean over groups with its standard error. The standard error of the accuracy over all pairs
    is not stored, because it follows from the accuracy and the number of pairs.
    """
    groups: Sequence[Any] = accuracies.coarsest if accuracies.columns else ()
    return {
        "pairs": accuracies.total.pairs,
        "pairs_accuracy": accuracies.total.accuracy,
        "pairs_mean_accuracy": accuracies.mean,
        "pairs_standard_error_of_mean": accuracies.standard_error_of_mean,
        "pairs_groups": {group.group[0]: group.accuracy for group in groups},
    }


def format_measurement(accuracies: PairAccuracies) -> str:
    """Returns a measurement as one line of output."""
    line = f"minimal pairs {accuracies.total.accuracy:.1%} right"
    if accuracies.columns:
        line += f", {describe_mean(accuracies)} {accuracies.mean:.1%}"
    return f"{line} (chance 50%)"
