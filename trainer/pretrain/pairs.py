"""Measures accuracy on minimal pairs during training; all ranks share the work."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from tokenizers import Tokenizer
from torch import Tensor

from pipeline.storage.secret_values import hide
from trainer.conversion.names import TOKENIZER
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
    """The minimal pairs that a run is measured on, as text and as ids."""

    pair_set: PairSet
    encoded: EncodedPairs


def load_pairs(
    settings: PretrainSettings,
    folder: RunFolder,
    config: BertConfig,
    ranks: Ranks,
    say: Callable[[str], None],
) -> ValidationPairs | None:
    """Reads the pairs of `validation.pairs` on rank 0 and sends them to all; None if not set.

    Args:
        settings: The settings of the run.
        folder: The run's folder, whose tokenizer encodes the sentences.
        config: The run's model.
        ranks: All ranks, which must call this together.
        say: Prints lines: the cost of a measurement, and the pairs that cannot be right.

    Raises:
        ValueError: The pairs are malformed or do not fit the model. It is raised on every rank.
    """
    name = settings.validation.pairs
    if name is None:
        return None
    found: ValidationPairs | None = None
    with together(ranks):
        if ranks.rank == 0:
            pair_set = read_pairs(name, limit=settings.validation.pairs_limit)
            encoded = encode_pairs(
                pair_set.pairs,
                Tokenizer.from_str(folder.read_vocabulary(TOKENIZER).decode()),
                config.max_position_embeddings,
                "original",
                is_causal=config.is_causal,
            )
            found = ValidationPairs(pair_set, encoded)
    pairs: ValidationPairs = ranks.from_first(found)
    count = f"{len(pairs.pair_set.pairs):,} minimal pairs"
    say(f"{count}: each measurement reads {pairs.encoded.num_read:,} tokens")
    for pair in pairs.pair_set.equal_pairs:
        say(hide(f"{pair.place}: {EQUAL_PAIR}"))
    return pairs


def measure_pairs(
    engine: Any, pairs: ValidationPairs, ranks: Ranks, micro_tokens: int
) -> tuple[dict[str, Any], str]:
    """Returns columns for metrics.jsonl, and a line of output; equal on all ranks."""
    model = engine.module
    model.eval()

    def predict(inputs: PackedInputs, positions_M: Tensor) -> Tensor:
        # ZeRO-3 gathers weights where a module is called, so the whole model is.
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
    found = summarize(pairs.pair_set, is_right(sums[encoded.good], sums[encoded.bad]))
    return pair_columns(found), format_measurement(found)


def _share_of(encoded: EncodedPairs, ranks: Ranks, micro_tokens: int) -> Iterator[ScoreBatch]:
    """Yields this rank's batches, equally many on all ranks: in ZeRO-3 a pass is a collective."""
    cuts = cut_batches(encoded, micro_tokens)
    for group, rows in cuts[ranks.rank :: ranks.world_size]:
        yield make_batch(group, rows, encoded.mask_id)
    if ranks.rank >= (len(cuts) - 1) % ranks.world_size + 1:
        yield empty_batch()


def pair_columns(found: PairAccuracies) -> dict[str, Any]:
    """Returns the columns of metrics.jsonl: accuracies of all pairs, of groups, and their mean."""
    groups: Sequence[Any] = found.coarsest if found.columns else ()
    return {
        "pairs": found.total.pairs,
        "pairs_accuracy": found.total.accuracy,
        "pairs_mean_accuracy": found.mean,
        "pairs_groups": {each.group[0]: each.accuracy for each in groups},
    }


def format_measurement(found: PairAccuracies) -> str:
    """Returns a measurement as one line of output."""
    line = f"minimal pairs {found.total.accuracy:.1%} right"
    if found.columns:
        line += f", {describe_mean(found)} {found.mean:.1%}"
    return f"{line} (chance 50%)"
