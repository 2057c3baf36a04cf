"""Measures what each source of a dataset contributes to the corpus and to the train instances."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.shards.dataset import Dataset


def measure_mixture(dataset: Dataset, licences: Mapping[str, str]) -> list[dict[str, Any]]:
    """Measures what each source contributes, for report.json.

    Args:
        dataset: The dataset.
        licences: The licence of each source by the source's name. A source without a licence may be
            missing.

    Returns:
        One mapping per source, in the order of the sources in the manifest. It has the source's
        name, licence, language and weight, the numbers of its documents and tokens, and its shares
        of the corpus and of the train instances.
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
    """Returns a message for each source of which the train instances hold nothing, with the reason.

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
    """Returns the number of tokens of each source in the train instances, of all passes together.

    Args:
        dataset: The dataset.
        num_sources: The number of its sources.
    """
    train = [shard for shard in dataset.all_shards if shard.split == "train"]
    if num_sources == 1:
        return [sum(shard.tokens for shard in train)]
    return [sum(shard.source_tokens[number] for shard in train) for number in range(num_sources)]


def find_dropped(counters: Mapping[str, int]) -> dict[str, int]:
    """Returns how many documents were dropped for each reason, without reasons of no documents.

    Args:
        counters: The counters of a manifest. Those of dropped documents are called "dropped_"
            followed by the reason.
    """
    return {
        name.removeprefix("dropped_"): count
        for name, count in counters.items()
        if name.startswith("dropped_") and count
    }


def share(part: int, whole: int) -> float:
    """Returns `part / whole`, rounded to six digits; 0 if the whole is 0."""
    return round(part / whole, 6) if whole else 0.0
