"""The validation split by source: what each gives to it, and what a person should know of it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.tokens.held_out import LEAST_DOCUMENTS, LEAST_SHARE, LEAST_TOKENS, MOST_SHARE
from pipeline.tokens.limits import VALIDATION_TOKENS

_MOST_NAMES = 8  # sources that a line of text names


def measure_validation(
    sources: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Documents and tokens that are held out, in all and by source, and warnings; None where a manifest knows none.

    Args:
        sources: Sources of a manifest.
        settings: Those of the build that the manifest keeps.
    """
    if not sources or any("validation" not in source for source in sources):
        return None
    rows = [_measure_source(source) for source in sources]
    documents, tokens = (sum(row[name] for row in rows) for name in ("documents", "tokens"))
    for row in rows:
        row["share_of_split"] = _share(row["tokens"], tokens)
    share = _share(tokens, sum(row["of_tokens"] for row in rows))
    found = {"documents": documents, "tokens": tokens, "share": share, "sources": rows}
    return found | {"said": _describe(found), "warnings": list(_warnings(found, settings))}


def format_validation(measured: Mapping[str, Any] | None) -> list[str]:
    """The split as lines of text: what it holds, by source where there are several, and the warnings."""
    if measured is None:
        return []
    said = (
        [f"validation {measured['said']}"]
        if measured["documents"] or not measured["warnings"]
        else []
    )
    return [*said, *(f"warning: {each}" for each in measured["warnings"])]


def _measure_source(source: Mapping[str, Any]) -> dict[str, Any]:
    held, counters = source["validation"], source["counters"]
    return {
        "name": source["name"],
        "documents": held["documents"],
        "tokens": held["tokens"],
        "share_of_source": _share(held["tokens"], counters["distinct_tokens"]),
        "of_documents": counters["documents"],
        "of_tokens": counters["distinct_tokens"],
    }


def _describe(measured: Mapping[str, Any]) -> str:
    rows = [row for row in measured["sources"] if row["documents"]]
    if not rows:
        return "holds no documents"
    numbers = measured["documents"], measured["tokens"], measured["share"]
    said = "holds {:,} documents of {:,} tokens, {:.2%} of the text".format(*numbers)
    if len(measured["sources"]) == 1:
        return said
    if len(rows) > _MOST_NAMES:
        return f"{said}, from {len(rows)} of {len(measured['sources'])} sources"
    shares = ", ".join(f"{row['name']} {row['share_of_split']:.1%}" for row in rows)
    return f"{said}: {shares}"


def _warnings(measured: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    if not (fraction := settings["validation_fraction"]):
        return
    rows = [row for row in measured["sources"] if row["of_documents"]]
    num_documents = sum(row["of_documents"] for row in rows)
    if num_documents < LEAST_DOCUMENTS:
        yield f"{num_documents} documents: no validation split, at least {LEAST_DOCUMENTS} are needed"
        return
    wanted = 1 if measured["documents"] else 2
    reasons = [
        (row["name"], _explain(row, settings, wanted)) for row in rows if not row["documents"]
    ]
    if not measured["documents"]:
        yield f"no validation split, which takes two documents: {_join(reasons, names=len(reasons) > 1)}"
        return
    if reasons:
        yield f"validation holds nothing of {_join(reasons, names=True)}"
    if measured["tokens"] < LEAST_TOKENS:
        yield (
            f"losses on fewer than {LEAST_TOKENS:,} tokens hang on single documents: give more text, or a larger"
            " validation_fraction"
        )
    if measured["share"] > 1.5 * max(fraction, 1 / LEAST_SHARE):
        yield (
            f"validation takes {measured['share']:.1%} of the text, as documents are held out whole;"
            " validation_fraction 0 trains on all of it"
        )
    yield from _find_outweighing(rows)


def _find_outweighing(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The source that is most of the split and much less of the text, and what evens it out."""
    total = sum(row["of_tokens"] for row in rows)
    for row in rows:
        share, of_text = row["share_of_split"], row["of_tokens"] / max(1, total)
        if share > 0.5 and share > 2 * of_text:
            yield (
                f"{share:.0%} of validation is of {row['name']}, which is {of_text:.0%} of the text: its documents are"
                f" long, and held out whole; --validation_fraction {_round_up(row['share_of_source'], 3)} holds out as"
                " much of every source"
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
        f"its {number:,} documents are too long: at most {most_share:.0%} of a source's tokens are held out, and"
        f" {most_tokens:,} in all; {flags} holds {wanted} out if they are equally long"
    )


def _round_up(share: float, digits: int) -> float:
    scale = 10.0**digits
    return math.ceil(round(share * scale, 6)) / scale


def _join(reasons: Sequence[tuple[str, str]], *, names: bool) -> str:
    said = [f"{name} ({reason})" if names else reason for name, reason in reasons]
    more = len(said) - _MOST_NAMES
    return ", ".join(said[:_MOST_NAMES]) + (f" and {more} more sources" if more > 0 else "")


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
