"""Which scheme the tags of a file are written in."""

from collections.abc import Callable, Sequence
from typing import Literal

from trainer.conll.tags import Scheme, check_tags

SchemeName = Literal["auto", "iob1", "iob2", "bioes"]

TaggedSentence = tuple[Sequence[str], Callable[[int], str]]
"""Tags of a sentence, and where its words stand."""


def resolve_scheme(sentences: Sequence[TaggedSentence], name: SchemeName) -> Scheme:
    """The scheme of that name, after a check of every tag; with "auto" the one that all tags are of.

    BIOES if there is an E or S, IOB1 if there is none and an I begins an entity, otherwise IOB2.

    Raises:
        ValueError: A tag is not of the scheme; says where, and with "auto" why it is that scheme.
    """
    if name != "auto":
        fault = _find_fault(sentences, name)
        if fault:
            raise ValueError(f"{fault}; the scheme was named {name}")
        return name
    if any(tag[0] in "ES" for tags, _ in sentences for tag in tags):
        fault = _find_fault(sentences, "bioes")
        if fault:
            raise ValueError(f"{fault}; the file has E- or S- tags, so it is bioes")
        return "bioes"
    not_iob2 = _find_fault(sentences, "iob2")
    if not_iob2 is None:
        return "iob2"
    not_iob1 = _find_fault(sentences, "iob1")
    if not_iob1:
        raise ValueError(f"the tags are of no scheme: {not_iob2}, and {not_iob1}; mend one of them")
    return "iob1"


def _find_fault(sentences: Sequence[TaggedSentence], scheme: Scheme) -> str | None:
    for tags, locate in sentences:
        violation = check_tags(tags, scheme)
        if violation:
            return f"{locate(violation.index)}: {violation.reason}"
    return None
