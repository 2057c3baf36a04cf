"""Measures what each source contributes to the validation split, and warns of its weaknesses."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.inspect.mixture import share
from pipeline.tokens.held_out import LEAST_DOCUMENTS, LEAST_SHARE, LEAST_TOKENS, MOST_SHARE
from pipeline.tokens.limits import VALIDATION_TOKENS

_MOST_NAMES = 8
"""The most sources that a line of text names."""


def measure_validation(
    sources: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Measures how much of each source the validation split holds, for report.json.

    Args:
        sources: The sources in a manifest.
        settings: The settings in the manifest.

    Returns:
        A mapping with `documents`, `tokens` and `share` (of all tokens) for the whole split; the
        same numbers of each source under `sources`; a clause in words under `said`; and `warnings`.
        None if the manifest does not say what is held out of each source.
    """
    if not sources or any("validation" not in source for source in sources):
        return None
    rows: list[dict[str, Any]] = [
        {
            "name": source["name"],
            "documents": source["validation"]["documents"],
            "tokens": source["validation"]["tokens"],
            "of_documents": source["counters"]["documents"],
            "of_tokens": source["counters"]["distinct_tokens"],
        }
        for source in sources
    ]
    documents = sum(row["documents"] for row in rows)
    tokens = sum(row["tokens"] for row in rows)
    for row in rows:
        row["share_of_source"] = share(row["tokens"], row["of_tokens"])
        row["share_of_split"] = share(row["tokens"], tokens)
    held = share(tokens, sum(row["of_tokens"] for row in rows))
    measured = {"documents": documents, "tokens": tokens, "share": held, "sources": rows}
    warnings = list(_warnings(measured, settings))
    return measured | {"said": _describe(measured), "warnings": warnings}


def format_validation(measured: Mapping[str, Any] | None) -> list[str]:
    """Returns lines of text about the validation split: what it holds, and then the warnings.

    Args:
        measured: The result of `measure_validation`. None gives no lines.
    """
    if measured is None:
        return []
    warnings = [f"warning: {warning}" for warning in measured["warnings"]]
    is_said = measured["documents"] or not warnings
    return [f"validation {measured['said']}", *warnings] if is_said else warnings


def _describe(measured: Mapping[str, Any]) -> str:
    """Describes what the validation split holds, as in "holds 12 documents of 24,000 tokens, ...".

    The caller puts a subject before it, such as "validation".
    """
    rows = [row for row in measured["sources"] if row["documents"]]
    if not rows:
        return "holds no documents"
    total = (
        f"holds {measured['documents']:,} documents of {measured['tokens']:,} tokens,"
        f" {measured['share']:.2%} of the text"
    )
    num_sources = len(measured["sources"])
    if num_sources == 1:
        return total
    if len(rows) > _MOST_NAMES:
        return f"{total}, from {len(rows)} of {num_sources} sources"
    shares = ", ".join(f"{row['name']} {row['share_of_split']:.1%}" for row in rows)
    return f"{total}: {shares}"


def _warnings(measured: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    """Yields a warning for each weakness of the validation split, which says how to mend it.

    The split may be missing although the settings ask for one, hold nothing of a source, be too
    small or too large, or be mostly of one source.

    Args:
        measured: What `measure_validation` returns, without `said` and `warnings`.
        settings: The settings in the manifest.
    """
    fraction = settings["validation_fraction"]
    if not fraction:
        return

    rows = [row for row in measured["sources"] if row["of_documents"]]
    num_documents = sum(row["of_documents"] for row in rows)
    if num_documents < LEAST_DOCUMENTS:
        least = f"at least {LEAST_DOCUMENTS} are needed"
        yield f"{num_documents} documents: no validation split, {least}"
        return

    num_needed = 1 if measured["documents"] else 2
    lacking = [row for row in rows if not row["documents"]]
    reasons = [(row["name"], _explain(row, settings, num_needed)) for row in lacking]
    if not measured["documents"]:
        explained = _join(reasons, names=len(reasons) > 1)
        yield f"no validation split, which takes two documents: {explained}"
        return
    if reasons:
        yield f"validation holds nothing of {_join(reasons, names=True)}"

    if measured["tokens"] < LEAST_TOKENS:
        yield (
            f"losses on fewer than {LEAST_TOKENS:,} tokens hang on single documents: give more"
            " text, or a larger validation_fraction"
        )
    if measured["share"] > 1.5 * max(fraction, 1 / LEAST_SHARE):
        yield (
            f"validation takes {measured['share']:.1%} of the text, as documents are held out"
            " whole; validation_fraction 0 trains on all of it"
        )

    total = sum(row["of_tokens"] for row in rows)
    for row in rows:
        held = row["share_of_split"]
        of_text = row["of_tokens"] / max(1, total)
        # The source is most of the split, and much less of the text.
        if held > 0.5 and held > 2 * of_text:
            evening = _round_up(row["share_of_source"], 3)
            yield (
                f"{held:.0%} of validation is of {row['name']}, which is {of_text:.0%} of the text:"
                f" its documents are long, and held out whole; --validation_fraction {evening}"
                " holds out as much of every source"
            )


def _explain(row: Mapping[str, Any], settings: Mapping[str, Any], num_needed: int) -> str:
    """Explains why none of a source's documents are held out, and which flags would change that.

    Args:
        row: The source, as in `sources` of the result of `measure_validation`.
        settings: The settings in the manifest.
        num_needed: How many documents of the source should be held out.
    """
    number = row["of_documents"]
    if number < 3:
        return f"it has {number} document(s), at least 3 are needed"
    most_share = max(MOST_SHARE, settings["validation_fraction"])
    most_tokens = settings.get("validation_tokens", VALIDATION_TOKENS)
    tokens = -(-num_needed * row["of_tokens"] // number)
    flags = f"--validation_fraction {_round_up(num_needed / number, 2)}"
    flags += f" --validation_tokens {tokens}" if tokens > most_tokens else ""
    return (
        f"its {number:,} documents are too long: at most {most_share:.0%} of a source's tokens"
        f" are held out, and {most_tokens:,} in all; {flags} holds {num_needed} out if they are"
        " equally long"
    )


def _round_up(share: float, digits: int) -> float:
    """Returns a share rounded up to a number of decimal digits."""
    scale = 10.0**digits
    return math.ceil(round(share * scale, 6)) / scale


def _join(reasons: Sequence[tuple[str, str]], *, names: bool) -> str:
    """Joins explanations of several sources to one text, with commas between them.

    After some sources the text ends in "and 3 more sources".

    Args:
        reasons: For each source, its name and the result of `_explain`.
        names: Whether the text names the sources.
    """
    texts = [f"{name} ({reason})" if names else reason for name, reason in reasons]
    num_more = len(texts) - _MOST_NAMES
    end = f" and {num_more} more sources" if num_more > 0 else ""
    return ", ".join(texts[:_MOST_NAMES]) + end
