"""Measures what each source of a dataset contributes to the corpus and to the train instances."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.shards.dataset import Dataset


def measure_mixture(dataset: Dataset, licences: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns one row per source, in the order of the sources' numbers.

    Args:
        dataset: The dataset.
        licences: Licence of a source by its name; a source that is missing has none.
    """
    sources = dataset.manifest.sources
    tokens = [source["counters"]["distinct_tokens"] for source in sources]
    trained = _trained_tokens(dataset, len(sources))
    return [
        {
            "name": source["name"],
            "licence": licences.get(source["name"], ""),
            "language": source["language"],
            "weight": source["weight"],
            "documents_read": source["counters"].get("documents_read", 0),
            "documents": source["counters"]["documents"],
            "dropped": find_dropped(source["counters"]),
            "tokens": in_corpus,
            "share_of_corpus": share(in_corpus, sum(tokens)),
            "share_of_instances": share(in_instances, sum(trained)),
        }
        for source, in_corpus, in_instances in zip(sources, tokens, trained, strict=True)
    ]


def format_mixture(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the rows of `measure_mixture` as lines of text, one per source."""
    width = max((len(row["name"]) for row in rows), default=0)
    return [
        f"  {row['name']:<{width}}  {row['language']:<3} weight {row['weight']:<5g}"
        f" {row['documents']:>12,} documents {row['tokens']:>14,} tokens"
        f" {row['share_of_corpus']:>6.1%} of the corpus"
        f" {row['share_of_instances']:>6.1%} of train instances  {row['licence']}".rstrip()
        for row in rows
    ]


def find_unused(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a message for each source that contributes nothing to the train instances.

    Args:
        rows: The result of `measure_mixture`.
    """
    reasons = []
    for row in rows:
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in row["dropped"].items())
        if not row["documents_read"] and not dropped:
            reasons.append(f"{row['name']}: its input holds no documents")
        elif not row["documents"]:
            reasons.append(f"{row['name']}: all of its documents were dropped: {dropped}")
        elif not row["share_of_instances"]:
            reasons.append(
                f"{row['name']}: no pass uses its documents, at weight {row['weight']:g}"
            )
    return reasons


def _trained_tokens(dataset: Dataset, num_sources: int) -> list[int]:
    """Returns the number of tokens that each source has in all train instances of all passes."""
    train = [shard for shard in dataset.all_shards if shard.split == "train"]
    if num_sources == 1:
        return [sum(shard.tokens for shard in train)]
    return [sum(shard.source_tokens[number] for shard in train) for number in range(num_sources)]


def find_dropped(counters: Mapping[str, int]) -> dict[str, int]:
    """Returns the number of dropped documents by reason; reasons that dropped none are left out.

    Args:
        counters: Counters of a manifest, which begin with "dropped_" for dropped documents.
    """
    return {
        name.removeprefix("dropped_"): count
        for name, count in counters.items()
        if name.startswith("dropped_") and count
    }


def share(part: int, whole: int) -> float:
    """Returns `part / whole`, rounded to six digits; 0 if the whole is 0."""
    return round(part / whole, 6) if whole else 0.0
