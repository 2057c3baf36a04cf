"""Tags of words and the entities they spell: IOB1, IOB2 and BIOES.

A tag is "O" or one of B, I, E, S, a hyphen and a type. IOB2 begins every entity with B; IOB1 only
one that follows another of its type at once; BIOES also ends entities of several words with E and
writes those of one as S.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

OUTSIDE = "O"

Scheme = Literal["iob1", "iob2", "bioes"]

TaggedSentence = tuple[Sequence[str], Callable[[int], str]]
"""Tags of a sentence, and where its words stand."""

_TAG = re.compile(r"O|[BIES]-.+", re.DOTALL)


class Entity(NamedTuple):
    """Words start to end - 1 of a sentence."""

    type: str
    start: int
    end: int


def is_tag(text: str) -> bool:
    """Whether the text is a tag of any of the schemes."""
    return _TAG.fullmatch(text) is not None


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """Entities of any tags, as conlleval reads them.

    A tag goes on with the entity before it if it is I or E, of its type, and that has not ended.
    """
    entities: list[Entity] = []
    start: int | None = None
    for index, (before, tag) in enumerate(zip([OUTSIDE, *tags], [*tags, OUTSIDE], strict=True)):
        if start is not None:
            if before[0] in "BI" and tag[0] in "IE" and before[2:] == tag[2:]:
                continue
            entities.append(Entity(tags[start][2:], start, index))
        start = None if tag == OUTSIDE else index
    return entities


def write_tags(entities: Iterable[Entity], num_words: int, scheme: Scheme) -> list[str]:
    """Tags of a sentence with these entities, which do not overlap and are in order."""
    tags = [OUTSIDE] * num_words
    for name, start, end in entities:
        tags[start:end] = [f"I-{name}"] * (end - start)
        if scheme != "iob1" or (start > 0 and tags[start - 1][2:] == name):
            tags[start] = f"B-{name}"
        if scheme == "bioes":
            tags[end - 1] = f"{'S' if end - start == 1 else 'E'}-{name}"
    return tags


def find_scheme(sentences: Sequence[TaggedSentence]) -> Scheme:
    """The scheme that all tags are of: bioes if there is an E or S, else iob2, or iob1."""
    is_bioes = any(tag[0] in "ES" for tags, _ in sentences for tag in tags)
    schemes: tuple[Scheme, ...] = ("bioes",) if is_bioes else ("iob2", "iob1")
    faults = []
    for scheme in schemes:
        fault = next(filter(None, (_find_fault(*each, scheme) for each in sentences)), None)
        if fault is None:
            return scheme
        faults.append(fault)
    raise ValueError(f"the tags are of no scheme: {', and '.join(faults)}; mend them")


def label_names(types: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Every tag of these types that the scheme has, "O" first: a type seen with B has I too."""
    prefixes = "BIES" if scheme == "bioes" else "BI"
    return (OUTSIDE, *(f"{prefix}-{name}" for name in sorted(set(types)) for prefix in prefixes))


def _find_fault(tags: Sequence[str], locate: Callable[[int], str], scheme: Scheme) -> str | None:
    """The first tag that the scheme would have otherwise, for a message; None if there is none."""
    right = write_tags(find_entities(tags), len(tags), scheme)
    for index, (found, wanted) in enumerate(zip(tags, right, strict=True)):
        if found != wanted:
            return f"{locate(index)}: {found} stands where {scheme} has {wanted}"
    return None
