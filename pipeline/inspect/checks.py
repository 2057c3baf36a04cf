"""What a person should look at of a dataset's numbers: each check holds, or says what was found."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.inspect.mixture import find_unused

_MUCH_DROPPED = 0.5
_MUCH_UNKNOWN = 0.01


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
        what: What is looked at.
        said: What was found.
        holds: Whether that is as it should be.
    """

    what: str
    said: str
    holds: bool


def find_checks(dataset: Mapping[str, Any]) -> Iterator[Check]:
    """All checks of what `summarize_dataset` found."""
    yield _check_documents(dataset["counters"])
    unused = find_unused(dataset["mixture"])
    said = "; ".join(unused) or f"{len(dataset['mixture'])} source(s)"
    yield Check("Every source is trained on", said, not unused)
    if validation := dataset["validation"]:
        said = "; ".join([f"it {validation['said']}", *validation["warnings"]])
        yield Check("Validation split", said, not validation["warnings"])
    yield Check("Coverage", dataset["coverage"]["said"], dataset["coverage"]["is_whole"])
    rate = dataset["unknown_rate"]
    yield Check("Unknown pieces", f"{rate:.3%} of all tokens", rate < _MUCH_UNKNOWN)


def _check_documents(counters: Mapping[str, int]) -> Check:
    """Documents read are kept or dropped, and most of them kept."""
    read, kept = counters.get("documents_read", 0), counters["documents"]
    dropped = sum(count for name, count in counters.items() if name.startswith("dropped_"))
    said = f"{read:,} read; {kept:,} kept, {dropped:,} dropped"
    if cut := counters.get("documents_cut", 0):
        said += f"; {cut:,} cut"
    is_much = dropped > _MUCH_DROPPED * read
    if is_much:
        said += ", more than half: inspect DATASET --dropped shows examples"
    return Check("Documents read are kept", said, read <= kept + dropped and not is_much)
