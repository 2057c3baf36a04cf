"""What a command says at its end: documents kept and dropped, by source."""

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
) -> Iterator[str]:
    """Lines of each source's counters and of some of the files that gave no text."""
    for name, own in counters.items():
        yield f"{name}: {format_mean(own['documents'], own['distinct_tokens'])}"
    num_read = sum(own.get("documents_read", 0) for own in counters.values())
    dropped = {name for own in counters.values() for name in own if name.startswith(_DROPPED)}
    for counter in sorted(dropped):
        numbers = {name: own[counter] for name, own in counters.items() if own.get(counter)}
        reason = counter.removeprefix(_DROPPED)
        said = _SAID_OF_REASONS.get(reason, f"are left out as {reason}")
        if numbers:
            each = ", ".join(f"{name} {number:,}" for name, number in numbers.items())
            yield f"{sum(numbers.values()):,} of {num_read:,} documents {said}: {each}"
    if number := sum(own.get("files_without_text", 0) for own in counters.values()):
        more = ", ..." * (number > len(without_text))
        yield f"{number:,} input file(s) gave no text: {', '.join(without_text)}{more}"


def format_mean(documents: int, tokens: int) -> str:
    """So many documents and their mean length."""
    return f"{documents:,} documents of {tokens / max(1, documents):,.0f} tokens on average"
