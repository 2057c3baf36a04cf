"""Learning a vocabulary: CPU seconds, memory and tokens a word, beside the trainer of `tokenizers`: one JSON line.

    python -m scripts.bench.vocab --train wiki_0[01].zst --held_out wiki_0[23].zst --bert vocab.txt
    python -m scripts.bench.vocab ... --distinct_words 1000000

Both learn from the same lines, each in a process of its own; BERT's vocabulary is there for scale.
`--distinct_words` adds a run of our learner on so many words: those of the text, then made-up ones
of halves of real ones.
"""

import argparse
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import zstandard
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from scripts.bench.measured import print_result
from tokenizer.encode import Encoder
from tokenizer.export import build_normalizer, build_pre_tokenizer
from tokenizer.learn import MAX_ALPHABET, learn_vocabulary
from tokenizer.vocab import SPECIAL_TOKENS, UNK, Vocabulary, parse_vocab
from tokenizer.words import count_words

Result = tuple[Vocabulary, dict[str, float]]


def read_lines(paths: Sequence[str]) -> list[str]:
    """Lines of text files, `.zst` too."""
    files = [Path(path) for path in paths]
    data = [
        zstandard.ZstdDecompressor().stream_reader(file.read_bytes()).read()
        if file.suffix == ".zst"
        else file.read_bytes()
        for file in files
    ]
    return [line for each in data for line in each.decode().splitlines()]


def run_ours(paths: Sequence[str], vocab_size: int) -> Result:
    """Counts words and learns from them, in this process."""
    lines = read_lines(paths)
    start = time.process_time()
    counts = count_words(lines, lower_case=True)
    counted = time.process_time()
    vocabulary = learn_vocabulary(list(counts), list(counts.values()), vocab_size)
    seconds = {
        "count_cpu_seconds": counted - start,
        "learn_cpu_seconds": time.process_time() - counted,
    }
    return vocabulary, seconds | {"distinct_words": len(counts)} | peak_memory()


def run_peer(paths: Sequence[str], vocab_size: int) -> Result:
    """The trainer of `tokenizers`, on all cores."""
    lines = read_lines(paths)
    tokenizer = Tokenizer(WordPiece(unk_token=UNK))
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        build_normalizer(lower_case=True),
        build_pre_tokenizer(),
    )
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        limit_alphabet=MAX_ALPHABET,
        show_progress=False,
    )
    start = time.process_time()
    tokenizer.train_from_iterator(lines, trainer)
    seconds = time.process_time() - start
    ids = tokenizer.get_vocab(with_added_tokens=False)
    return Vocabulary(tuple(sorted(ids, key=ids.__getitem__))), {
        "count_and_learn_cpu_seconds": seconds
    } | peak_memory()


def run_many_words(paths: Sequence[str], vocab_size: int, num_words: int) -> Result:
    """Our learner alone, on the words of the text and made-up ones."""
    counts: dict[str, int] = dict(count_words(read_lines(paths), lower_case=True))
    rng = random.Random(0)
    real = [word for word in counts if word.isascii() and word.isalpha() and len(word) > 3]
    while len(counts) < num_words:
        left, right = rng.choice(real), rng.choice(real)
        counts.setdefault(
            left[: len(left) * 2 // 3] + right[len(right) // 2 :], int(rng.paretovariate(1))
        )
    words, numbers = list(counts), list(counts.values())
    start = time.process_time()
    vocabulary = learn_vocabulary(words, numbers, vocab_size)
    seconds = time.process_time() - start
    return vocabulary, {"learn_cpu_seconds": seconds, "distinct_words": len(words)} | peak_memory()


def peak_memory() -> dict[str, float]:
    """Of this process, text and all."""
    return {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


def in_own_process(function: Callable[..., Result], *arguments: Any) -> Result:
    """Runs a function in a fresh process, so that memory is its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure_tokens(vocabulary: Vocabulary, lines: Sequence[str]) -> dict[str, float]:
    """Tokens a word on other text, and the share of words that are [UNK]."""
    num_words = count_words(lines, lower_case=True).total()
    ids, _ = Encoder(vocabulary, lower_case=True).encode_sentences(lines)
    unknown = int((ids == vocabulary.unk_id).sum())
    return {
        "pieces": len(vocabulary),
        "tokens_per_word": len(ids) / num_words,
        "unknown_share": unknown / num_words,
    }


def main() -> int:
    """Learns, measures, prints."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--train", nargs="+", required=True)
    parser.add_argument("--held_out", nargs="+", required=True)
    parser.add_argument("--bert", help="BERT's own uncased vocab.txt")
    parser.add_argument("--vocab_size", type=int, default=30_522)
    parser.add_argument("--distinct_words", type=int)
    config = parser.parse_args()
    held_out = read_lines(config.held_out)
    learners: dict[str, Callable[..., Result]] = {"ours": run_ours, "peer": run_peer}
    runs: dict[str, dict[str, float]] = {}
    for name, learner in learners.items():
        vocabulary, measured = in_own_process(learner, config.train, config.vocab_size)
        runs[name] = measured | measure_tokens(vocabulary, held_out)
    if config.bert:
        runs["bert"] = measure_tokens(
            parse_vocab(Path(config.bert).read_bytes(), config.bert), held_out
        )
    if config.distinct_words:
        arguments = (config.train, config.vocab_size, config.distinct_words)
        runs["many_words"] = in_own_process(run_many_words, *arguments)[1]
    print_result(
        "vocab",
        vars(config),
        ("numpy", "tokenizers"),
        tokens_per_word_ours_over_peer=runs["ours"]["tokens_per_word"]
        / runs["peer"]["tokens_per_word"],
        runs={
            name: {key: round(value, 5) for key, value in run.items()} for name, run in runs.items()
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
