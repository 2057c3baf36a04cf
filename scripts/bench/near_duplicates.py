"""Near-duplicates: speed of signing and grouping, memory, precision and recall at planted similarities: one JSON line.

    python -m scripts.bench.near_duplicates --input 'wiki/*.zst' --documents 500000

Copies of the input's documents are planted with a share of their words replaced by others of the
corpus, or with their sentences in another order; precision and recall are against the exact Jaccard
similarity of 5-word shingles. Grouping is measured on random signatures of which every tenth is
like another. datasketch, where it is installed, does both on the same documents.
"""

import argparse
import importlib
import importlib.util
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from pipeline.jobs.near_duplicates_job import plan_ranges, plan_runs, write_bands, write_found
from pipeline.storage.folder import Folder
from pipeline.text.cleaning import document_id
from pipeline.text.minhash import NUM_HASHES, SHINGLE_WORDS, sign_texts
from pipeline.text.sentences import split_sentences
from pipeline.tokens.grouped_rows import HEAD_BYTES, read_groups
from pipeline.tokens.near_duplicates import (
    BANDED_DTYPE,
    FOUND_DTYPE,
    SIGNED_DTYPE,
    SimilarityRule,
    find_near_duplicates,
    keep_smallest,
    pack_bands,
    pack_signatures,
    similarity_rule,
)
from pipeline.tokens.token_parts import TokenizedDocument, join_id
from scripts.bench.measured import print_result, read_documents

CHANGED_SHARES = (0.005, 0.01, 0.02, 0.1, 0.5)
PLANTED = 400
_DOCUMENTS_OF_A_PART = 20_000


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--input", nargs="+", required=True)
    parser.add_argument("--documents", type=int, default=500_000, help="random signatures to group")
    parser.add_argument("--threshold", type=float, default=0.8)
    arguments = parser.parse_args()
    rule = similarity_rule(arguments.threshold)
    grouping = measure_grouping(arguments.documents, rule)  # first, so that the peak is its own
    texts = read_documents(arguments.input)
    packages = ("numpy", "datasketch") if has_peer() else ("numpy",)
    print_result(
        "near_duplicates",
        vars(arguments) | {"bands": rule.bands, "rows": rule.rows},
        packages,
        signing=measure_signing(texts),
        grouping=grouping,
        quality=measure_quality(texts, arguments.threshold, rule),
    )
    return 0


def measure_signing(texts: Sequence[str]) -> dict[str, Any]:
    """MB of text per CPU-second, ours and the peer's (on a tenth of it)."""
    sign_texts(texts[:1])
    num_bytes = sum(len(text.encode()) for text in texts)
    start = time.process_time()
    sign_texts(texts)
    ours = num_bytes / 1e6 / (time.process_time() - start)
    found = {"mb": round(num_bytes / 1e6, 1), "mb_per_cpu_second": round(ours, 1)}
    if has_peer():
        tenth = texts[::10]
        start = time.process_time()
        for text in tenth:
            sign_with_peer(text)
        peer = sum(len(text.encode()) for text in tenth) / 1e6 / (time.process_time() - start)
        found |= {
            "datasketch_mb_per_cpu_second": round(peer, 2),
            "times_datasketch": round(ours / peer, 1),
        }
    return found


def measure_grouping(number: int, rule: SimilarityRule) -> dict[str, Any]:
    """Documents per CPU-second from signatures to what is found, the bytes between, and the process's peak memory."""
    before = peak_mb()
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        sizes = {}
        rng = np.random.default_rng(1)
        for first in range(0, number, _DOCUMENTS_OF_A_PART):
            name = f"part-{first:09d}"
            sizes[name] = min(_DOCUMENTS_OF_A_PART, number - first)
            Path(folder, f"{name}.signatures").write_bytes(
                random_signatures(rng, sizes[name]).tobytes()
            )
        runs = plan_runs(sizes)
        ranges = plan_ranges(runs, rule)
        start = time.process_time()
        written = [write_bands(run, rule, Folder(folder)) for run in runs]
        banding = time.process_time() - start
        found = [write_found(keys, written, rule, Folder(folder)) for keys in ranges]
        seconds, peak = time.process_time() - start, peak_mb()
        num_bytes = sum(Path(folder, name).stat().st_size for name in written)
        rows = keep_smallest(
            np.concatenate(
                [read_groups(Folder(folder), each, FOUND_DTYPE, 0, 255) for each in found]
            )
        )
    return {
        "documents": number,
        "ranges": len(ranges),
        "found": len(rows),
        "documents_per_cpu_second": round(number / seconds),
        "share_of_banding": round(banding / seconds, 2),
        "bytes_a_document_between": round(num_bytes / number),
        "peak_mb": peak,
        "peak_mb_before": before,
    }


def random_signatures(rng: np.random.Generator, number: int) -> Any:
    """Signatures of random documents; every tenth is another's with a tenth of its places changed."""
    rows = np.zeros(number, SIGNED_DTYPE)
    rows["high"], rows["low"] = rng.integers(0, 1 << 64, (2, number), np.uint64)
    rows["signature"] = rng.integers(0, 1 << 16, (number, NUM_HASHES), np.uint16)
    like = np.arange(0, number - 1, 10)
    copied = rows["signature"][like + 1]
    changed = rng.random(copied.shape) < 0.1
    copied[changed] = rng.integers(0, 1 << 16, int(changed.sum()), np.uint16)
    rows["signature"][like] = copied
    return rows


def measure_quality(texts: Sequence[str], threshold: float, rule: SimilarityRule) -> dict[str, Any]:
    """Recall of planted copies by kind, precision of all that is dropped, and the error of the estimate."""
    rng = Random(7)
    words = [word for text in texts[::20] for word in text.split()]
    long_enough = [text for text in texts if len(text) > 500]
    bases = rng.sample(long_enough, min(PLANTED, len(long_enough)))
    kinds = {
        f"{share:.1%} of words": [change_words(text, share, words, rng) for text in bases]
        for share in CHANGED_SHARES
    }
    kinds["sentences reordered"] = [reorder_sentences(text, rng) for text in bases]
    planted: dict[str, Any] = {}
    exact, dropped, errors = [], [], []
    for kind, copies in kinds.items():
        similar = [jaccard(base, copy) for base, copy in zip(bases, copies, strict=True)]
        found = [
            bool(find_in([base, copy], rule)) for base, copy in zip(bases, copies, strict=True)
        ]
        planted[kind] = {
            "mean_similarity": round(mean(similar), 3),
            "dropped": round(mean(found), 3),
        }
        estimates = [mean(np.equal(*sign_texts(pair))) for pair in zip(bases, copies, strict=True)]
        errors += [estimate - own for estimate, own in zip(estimates, similar, strict=True)]
        exact += similar
        dropped += found
    own = [jaccard(*pair) for pair in find_in(texts, rule)]
    return {
        "planted": planted,
        **rate_choices(np.array(exact), np.array(dropped), threshold),
        "error_of_estimate": round(mean(np.square(errors)) ** 0.5, 4),
        "error_expected": round(mean([each * (1 - each) / NUM_HASHES for each in exact]) ** 0.5, 4),
        "found_in_the_input_itself": len(own),
        "of_documents": len(set(texts)),
        "their_least_similarity": round(min(own, default=1.0), 3),
    }


def rate_choices(exact: Any, dropped: Any, threshold: float) -> dict[str, float]:
    """Precision and recall of what was dropped, by the exact similarities, and without those within 0.05 or 0.1."""
    rates: dict[str, float] = {"pairs": len(exact), "pairs_alike": int(np.sum(exact >= threshold))}
    for margin in (0.0, 0.05, 0.1):
        without = f"_without_{margin}" if margin else ""
        rates[f"precision{without}"] = round(mean(exact[dropped] >= threshold - margin), 4)
        rates[f"recall{without}"] = round(mean(dropped[exact >= min(0.99, threshold + margin)]), 4)
    return rates


def mean(values: Any) -> float:
    """The mean; 1 of nothing."""
    return float(np.mean(values)) if len(values) else 1.0


def find_in(texts: Sequence[str], rule: SimilarityRule) -> list[tuple[str, str]]:
    """Pairs of a document that is dropped and what it is like."""
    by_id = {document_id(text): text for text in texts}
    empty = np.zeros(0, np.uint16)
    signed = [
        TokenizedDocument(each, 0, empty, empty, signature=row.tobytes())
        for each, row in zip(by_id, sign_texts(list(by_id.values())), strict=True)
    ]
    rows = np.frombuffer(pack_signatures(signed), SIGNED_DTYPE)
    banded = np.frombuffer(pack_bands(rows, rule)[HEAD_BYTES:], BANDED_DTYPE)
    return [
        (
            by_id[join_id(row["high"], row["low"])],
            by_id[join_id(row["other_high"], row["other_low"])],
        )
        for row in find_near_duplicates(banded, rule.matches)
    ]


def change_words(text: str, share: float, words: Sequence[str], rng: Random) -> str:
    """The text with a share of its words replaced."""
    return " ".join(rng.choice(words) if rng.random() < share else word for word in text.split())


def reorder_sentences(text: str, rng: Random) -> str:
    """The text with its sentences in another order."""
    sentences = split_sentences(text)
    rng.shuffle(sentences)
    return " ".join(sentences)


def jaccard(left: str, right: str) -> float:
    """The exact similarity of two texts."""
    a, b = shingles(left), shingles(right)
    return len(a & b) / len(a | b)


def shingles(text: str) -> set[tuple[str, ...]]:
    """A text's runs of 5 words."""
    words = text.lower().split()
    return {
        tuple(words[start : start + SHINGLE_WORDS])
        for start in range(max(1, len(words) - SHINGLE_WORDS + 1))
    }


def sign_with_peer(text: str) -> Any:
    """The peer's signature of the same shingles."""
    signature = importlib.import_module("datasketch").MinHash(num_perm=NUM_HASHES, seed=1)
    signature.update_batch([" ".join(shingle).encode() for shingle in shingles(text)])
    return signature


def has_peer() -> bool:
    """Whether datasketch is installed."""
    return importlib.util.find_spec("datasketch") is not None


def peak_mb() -> int:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
