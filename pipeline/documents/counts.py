"""Formats the lines that a command prints at its end: how many documents it kept and dropped."""

from collections.abc import Iterator, Mapping, Sequence

_DROPPED = "dropped_"
WORDS_OF_REASONS = {
    "empty": "have no text",
    "duplicate": "are copies of others",
    "near_duplicate": "are like another",
    "excluded": "are in a dataset to exclude",
    "language": "are in other languages",
    "task_text": "hold text of the task files",
    "too_short": "are too short",
    "too_long": "are too long",
    "redirect": "are redirects",
    "not_an_article": "are no articles",
    "not_a_page": "are no pages",
    "redacted": "are redacted",
}
"""The reasons that the program itself drops documents for; the words complete "12 of 34 documents".

Malformed documents have other reasons, and so have those that a user's own filter drops.
"""


def format_counts(
    counters: Mapping[str, Mapping[str, int]], without_text: Sequence[str] = ()
) -> Iterator[str]:
    """Yields one line about each source, each reason to drop documents, and files without text.

    Args:
        counters: The counters of each source, by the source's name.
        without_text: Names of some files that gave no text, as examples.
    """
    for source, counts in counters.items():
        yield f"{source}: {format_mean(counts['documents'], counts['distinct_tokens'])}"

    num_read = sum(counts.get("documents_read", 0) for counts in counters.values())
    names = {name for counts in counters.values() for name in counts if name.startswith(_DROPPED)}
    for name in sorted(names):
        by_source = {
            source: counts[name] for source, counts in counters.items() if counts.get(name)
        }
        reason = name.removeprefix(_DROPPED)
        said = WORDS_OF_REASONS.get(reason, f"are left out as {reason}")
        if by_source:
            shares = ", ".join(f"{source} {number:,}" for source, number in by_source.items())
            yield f"{sum(by_source.values()):,} of {num_read:,} documents {said}: {shares}"

    num_files = sum(counts.get("files_without_text", 0) for counts in counters.values())
    if num_files:
        more = ", ..." * (num_files > len(without_text))
        yield f"{num_files:,} input file(s) gave no text: {', '.join(without_text)}{more}"


def format_mean(documents: int, tokens: int) -> str:
    """Returns a text such as "12 documents of 340 tokens on average".

    Args:
        documents: The number of documents.
        tokens: The number of tokens of all documents together.
    """
    return f"{documents:,} documents of {tokens / max(1, documents):,.0f} tokens on average"
