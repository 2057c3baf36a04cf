"""Sentences a CPU-second of minimal pairs scored by random weights, beside minicons.

    python -m scripts.bench.minimal_pairs --pairs blimp.jsonl --vocab vocab.txt --model mini
    python -m scripts.bench.minimal_pairs ... --peer_pairs 500    # needs: pip install minicons

One process and one thread. Random weights cost what trained ones cost. All pairs are scored by
the pseudo-log-likelihood (`--pairs_limit` takes the first of each paradigm), and their accuracy is
shown, which is near chance. The peer scores some pairs, taken at equal distances from all. For
each of its metrics, `largest_difference` is the largest between its sum and ours, in nats, and
`verdicts_that_differ` counts pairs.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # before the import, which reads them

import numpy as np
import torch
from numpy.typing import NDArray

from scripts.bench.measured import cpu_seconds, print_result
from scripts.checkout import make_parser
from tokenizer.word_rule import UNCASED
from trainer.conversion.export import export_hf
from trainer.inference.evaluate_pairs import evaluate_pairs, score_pairs
from trainer.inference.open_model import OpenedModel, open_model
from trainer.minimal_pairs.accuracy import PairAccuracies, is_right
from trainer.minimal_pairs.read import PairSet, read_pairs
from trainer.minimal_pairs.score import Pll
from trainer.model.bert import build_model
from trainer.model.config import PRESETS, preset

PEER_METRICS: dict[Pll, str] = {"original": "original", "word-l2r": "within_word_l2r"}
PEER_BATCH = 20


def main() -> None:
    """Prints a line for the model."""
    arguments = parse_arguments()
    pair_set = read_pairs(arguments.pairs, limit=arguments.pairs_limit)
    with tempfile.TemporaryDirectory() as folder:
        opened = make_model(arguments.model, Path(arguments.vocab).read_bytes(), folder)
        found: dict[str, Any] = measure(opened, pair_set)
        packages = ["torch", "tokenizers"]
        if arguments.peer_pairs:
            packages += ["minicons", "transformers"]
            found["peer"] = list(compare(opened, thin(pair_set, arguments.peer_pairs)))
        files = {name: Path(getattr(arguments, name)).name for name in ("pairs", "vocab")}
        print_result("minimal_pairs", vars(arguments) | files, packages, **found)


def parse_arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--pairs", required=True)
    parser.add_argument("--pairs_limit", type=int, default=0)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--model", choices=list(PRESETS), default="mini")
    parser.add_argument("--peer_pairs", type=int, default=0)
    return parser.parse_args()


def make_model(name: str, vocab: bytes, folder: str) -> OpenedModel:
    """Exports and opens a model of a released size whose random weights tell sentences apart."""
    config = preset(name, vocab_size=vocab.count(b"\n"))
    model = build_model(config, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    export_hf(model.state_dict(), config, vocab, folder, rule=UNCASED, provenance={})
    return open_model(folder)


def measure(opened: OpenedModel, pair_set: PairSet) -> dict[str, Any]:
    """Scores all pairs by our own program."""
    accuracies: list[PairAccuracies] = []
    seconds = cpu_seconds(lambda: accuracies.append(evaluate_pairs(opened, pair_set)))
    num_sentences = 2 * len(pair_set.pairs)
    return {
        "sentences": num_sentences,
        "cpu_minutes": round(seconds / 60, 2),
        "sentences_per_second": round(num_sentences / seconds, 1),
        "mean_accuracy": accuracies[0].mean,
        "standard_error_of_mean": accuracies[0].standard_error_of_mean,
        "accuracy": accuracies[0].total.accuracy,
        "standard_error": accuracies[0].total.standard_error,
    }


def thin(pair_set: PairSet, count: int) -> PairSet:
    """Returns so many pairs, at equal distances in the file."""
    places = np.linspace(0, len(pair_set.pairs) - 1, count).astype(int)
    return PairSet(pair_set.columns, [pair_set.pairs[place] for place in places])


def compare(opened: OpenedModel, pair_set: PairSet) -> Iterator[dict[str, Any]]:
    """Scores pairs by both programs, by either metric."""
    from minicons.scorer import MaskedLMScorer

    peer = MaskedLMScorer(opened.where, "cpu")
    # minicons 0.3.39 calls it by the name that transformers 5 has taken away.
    peer.tokenizer.batch_encode_plus = peer.tokenizer
    num_sentences = 2 * len(pair_set.pairs)
    for pll, metric in PEER_METRICS.items():
        ours, our_seconds = timed(partial(score_pairs, opened, pair_set, pll=pll))
        theirs, their_seconds = timed(partial(peer_sums, peer, pair_set, metric))
        yield {
            "metric": metric,
            "pairs": len(pair_set.pairs),
            "largest_difference": float(np.abs(ours - theirs).max()),
            "largest_sum": float(np.abs(ours).max()),
            "verdicts_that_differ": int((is_right(*ours) != is_right(*theirs)).sum()),
            "our_sentences_per_second": round(num_sentences / our_seconds, 1),
            "their_sentences_per_second": round(num_sentences / their_seconds, 1),
        }


def timed(score: Callable[[], Iterable[Any]]) -> tuple[NDArray[np.float64], float]:
    """Returns the sums [2, P] of good and bad sentences, and the CPU seconds they took."""
    start = time.process_time()
    sums = np.array(list(score()))
    return sums, time.process_time() - start


def peer_sums(peer: Any, pair_set: PairSet, metric: str) -> Iterator[list[float]]:
    """Yields minicons' sums of all good sentences, then of all bad ones."""
    good = [pair.good for pair in pair_set.pairs]
    bad = [pair.bad for pair in pair_set.pairs]
    for texts in (good, bad):
        sums: list[float] = []
        for start in range(0, len(texts), PEER_BATCH):
            batch = texts[start : start + PEER_BATCH]
            sums += peer.sequence_score(batch, reduction=add_up, PLL_metric=metric)
        yield sums


def add_up(scores: torch.Tensor) -> float:
    """Sums the scores of a sentence's tokens."""
    return float(scores.sum())


if __name__ == "__main__":
    main()
