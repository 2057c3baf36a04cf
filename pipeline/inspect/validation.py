"""The validation split by source: what each gives to it, and what a person should know of it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.inspect.mixture import share
from pipeline.tokens.held_out import LEAST_DOCUMENTS, LEAST_SHARE, LEAST_TOKENS, MOST_SHARE
from pipeline.tokens.limits import VALIDATION_TOKENS

_MOST_NAMES = 8  # sources that a line of text names


def measure_validation(
    sources: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """What is held out, in all and by source of a manifest, and warnings; None where none says."""
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
    documents, tokens = (sum(row[name] for row in rows) for name in ("documents", "tokens"))
    for row in rows:
        row["share_of_source"] = share(row["tokens"], row["of_tokens"])
        row["share_of_split"] = share(row["tokens"], tokens)
    held = share(tokens, sum(row["of_tokens"] for row in rows))
    found = {"documents": documents, "tokens": tokens, "share": held, "sources": rows}
    return found | {"said": _describe(found), "warnings": list(_warnings(found, settings))}


def format_validation(measured: Mapping[str, Any] | None) -> list[str]:
    """The split as lines of text, and the warnings."""
    if measured is None:
        return []
    warnings = [f"warning: {each}" for each in measured["warnings"]]
    is_said = measured["documents"] or not warnings
    return [f"validation {measured['said']}", *warnings] if is_said else warnings


def _describe(measured: Mapping[str, Any]) -> str:
    rows = [row for row in measured["sources"] if row["documents"]]
    if not rows:
        return "holds no documents"
    numbers = measured["documents"], measured["tokens"], measured["share"]
    said = "holds {:,} documents of {:,} tokens, {:.2%} of the text".format(*numbers)
    if (number := len(measured["sources"])) == 1:
        return said
    if len(rows) > _MOST_NAMES:
        return f"{said}, from {len(rows)} of {number} sources"
    shares = ", ".join(f"{row['name']} {row['share_of_split']:.1%}" for row in rows)
    return f"{said}: {shares}"


def _warnings(measured: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    if not (fraction := settings["validation_fraction"]):
        return
    rows = [row for row in measured["sources"] if row["of_documents"]]
    if (number := sum(row["of_documents"] for row in rows)) < LEAST_DOCUMENTS:
        yield f"{number} documents: no validation split, at least {LEAST_DOCUMENTS} are needed"
        return
    wanted = 1 if measured["documents"] else 2
    lacking = [row for row in rows if not row["documents"]]
    reasons = [(row["name"], _explain(row, settings, wanted)) for row in lacking]
    if not measured["documents"]:
        said = _join(reasons, names=len(reasons) > 1)
        yield f"no validation split, which takes two documents: {said}"
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
    for row in rows:  # most of the split, and much less of the text
        held, of_text = row["share_of_split"], row["of_tokens"] / max(1, total)
        if held > 0.5 and held > 2 * of_text:
            evening = _round_up(row["share_of_source"], 3)
            yield (
                f"{held:.0%} of validation is of {row['name']}, which is {of_text:.0%} of the text:"
                f" its documents are long, and held out whole; --validation_fraction {evening}"
                " holds out as much of every source"
            )


def _explain(row: Mapping[str, Any], settings: Mapping[str, Any], wanted: int) -> str:
    """Why a source gives nothing, and what would make it give as many documents as are wanted."""
    number = row["of_documents"]
    if number < 3:
        return f"it has {number} document(s), at least 3 are needed"
    most_share = max(MOST_SHARE, settings["validation_fraction"])
    most_tokens = settings.get("validation_tokens", VALIDATION_TOKENS)
    tokens = -(-wanted * row["of_tokens"] // number)
    flags = f"--validation_fraction {_round_up(wanted / number, 2)}"
    flags += f" --validation_tokens {tokens}" if tokens > most_tokens else ""
    return (
        f"its {number:,} documents are too long: at most {most_share:.0%} of a source's tokens"
        f" are held out, and {most_tokens:,} in all; {flags} holds {wanted} out if they are"
        " equally long"
    )


def _round_up(share: float, digits: int) -> float:
    scale = 10.0**digits
    return math.ceil(round(share * scale, 6)) / scale


def _join(reasons: Sequence[tuple[str, str]], *, names: bool) -> str:
    said = [f"{name} ({reason})" if names else reason for name, reason in reasons]
    more = len(said) - _MOST_NAMES
    return ", ".join(said[:_MOST_NAMES]) + (f" and {more} more sources" if more > 0 else "")
