"""What a command says at its end: documents kept by source with their mean length, and drops by reason and source."""

from collections.abc import Iterator, Mapping, Sequence

_DROPPED = "dropped_"
_SAID_OF_REASONS = {
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
}


def format_counts(
    counters: Mapping[str, Mapping[str, int]], without_text: Sequence[str] = ()
) -> list[str]:
    """Lines for people.

    Args:
        counters: Counters of each source by its name, as the manifest has them.
        without_text: Some of the input files that gave no text.
    """
    return [
        *(_format_kept(name, own) for name, own in counters.items()),
        *_format_drops(counters),
        *_format_files(
            sum(own.get("files_without_text", 0) for own in counters.values()), without_text
        ),
    ]


def format_mean(documents: int, tokens: int) -> str:
    """So many documents and their mean length."""
    return f"{documents:,} documents of {tokens / max(1, documents):,.0f} tokens on average"


def _format_kept(name: str, counters: Mapping[str, int]) -> str:
    return f"{name}: {format_mean(counters['documents'], counters['distinct_tokens'])}"


def _format_drops(counters: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    num_read = sum(own.get("documents_read", 0) for own in counters.values())
    for reason in sorted(
        {name for own in counters.values() for name in own if name.startswith(_DROPPED)}
    ):
        numbers = {name: own[reason] for name, own in counters.items() if own.get(reason)}
        if numbers:
            said = _SAID_OF_REASONS.get(
                reason.removeprefix(_DROPPED), f"are left out as {reason.removeprefix(_DROPPED)}"
            )
            each = ", ".join(f"{name} {number:,}" for name, number in numbers.items())
            yield f"{sum(numbers.values()):,} of {num_read:,} documents {said}: {each}"


def _format_files(number: int, urls: Sequence[str]) -> Iterator[str]:
    if number:
        yield f"{number:,} input file(s) gave no text: {', '.join(urls)}{', ...' * (number > len(urls))}"
