"""Tags of words and the entities they spell: IOB1, IOB2 and BIOES.

A tag is "O" or one of B, I, E, S, a hyphen and a type. IOB2 begins every entity with B; IOB1 only
one that follows another of its type at once; BIOES also ends entities of several words with E and
writes those of one as S.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

OUTSIDE = "O"

Scheme = Literal["iob1", "iob2", "bioes"]
SchemeName = Literal["auto", "iob1", "iob2", "bioes"]

TaggedSentence = tuple[Sequence[str], Callable[[int], str]]
"""Tags of a sentence, and where its words stand."""

_TAG = re.compile(r"O|[BIES]-.+", re.DOTALL)


@dataclass(frozen=True, order=True)
class Entity:
    """Words start to end - 1 of a sentence."""

    type: str
    start: int
    end: int


def is_tag(text: str) -> bool:
    """Whether the text is a tag of any of the schemes."""
    return _TAG.fullmatch(text) is not None


def type_of(tag: str) -> str:
    """What kind of entity the tag is of; empty for "O"."""
    return tag[2:]


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """Entities of any sequence of tags, well-formed or not, as conlleval reads them.

    A tag goes on with the entity before it if it is I or E, of its type, and that entity has not
    ended with E or S.
    """
    entities: list[Entity] = []
    start: int | None = None
    for index, tag in enumerate([*tags, OUTSIDE]):
        if start is not None and not _continues(tags[index - 1], tag):
            entities.append(Entity(type_of(tags[start]), start, index))
            start = None
        if start is None and tag != OUTSIDE:
            start = index
    return entities


def find_strict_entities(tags: Sequence[str], scheme: Literal["iob2", "bioes"]) -> list[Entity]:
    """Entities that are written as the scheme has them: what seqeval's strict mode counts."""
    first, last = ("B", "BI") if scheme == "iob2" else ("BS", "ES")
    entities = []
    for index, tag in enumerate(tags):
        if tag[0] not in first:
            continue
        end = index + 1
        while tag[0] != "S" and end < len(tags) and _continues(tags[end - 1], tags[end]):
            end += 1
        if tags[end - 1][0] in last:
            entities.append(Entity(type_of(tag), index, end))
    return entities


def write_tags(entities: Iterable[Entity], num_words: int, scheme: Scheme) -> list[str]:
    """Tags of a sentence with these entities, which do not overlap."""
    tags = [OUTSIDE] * num_words
    for entity in sorted(entities, key=lambda entity: entity.start):
        for index in range(entity.start, entity.end):
            is_first, is_last = index == entity.start, index == entity.end - 1
            prefix = "B" if is_first and _begins_with_b(tags, entity, scheme) else "I"
            if scheme == "bioes" and is_last:
                prefix = "S" if is_first else "E"
            tags[index] = f"{prefix}-{entity.type}"
    return tags


def check_tags(tags: Sequence[str], scheme: Scheme) -> tuple[int, str] | None:
    """The first word whose tag is not of the scheme, and what is wrong; None where all are."""
    for index, (before, tag) in enumerate(zip([OUTSIDE, *tags], [*tags, OUTSIDE], strict=True)):
        reason = _find_fault(before, tag, scheme)
        if reason:
            return min(index, len(tags) - 1), reason
    return None


def resolve_scheme(sentences: Sequence[TaggedSentence], name: SchemeName) -> Scheme:
    """The scheme of that name once every tag is checked; "auto" finds the one that all tags are of.

    BIOES if there is an E or S, IOB1 if there is none and an I begins an entity, otherwise IOB2.

    Raises:
        ValueError: A tag is not of the scheme; says where, and with "auto" why it is that scheme.
    """
    if name != "auto":
        fault = _first_fault(sentences, name)
        if fault:
            raise ValueError(f"{fault}; the scheme was named {name}")
        return name
    if any(tag[0] in "ES" for tags, _ in sentences for tag in tags):
        fault = _first_fault(sentences, "bioes")
        if fault:
            raise ValueError(f"{fault}; the file has E- or S- tags, so it is bioes")
        return "bioes"
    not_iob2 = _first_fault(sentences, "iob2")
    if not_iob2 is None:
        return "iob2"
    not_iob1 = _first_fault(sentences, "iob1")
    if not_iob1:
        raise ValueError(f"the tags are of no scheme: {not_iob2}, and {not_iob1}; mend one of them")
    return "iob1"


def label_names(types: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Every tag of these types that the scheme has, "O" first: a type seen with B has I too."""
    prefixes = "BIES" if scheme == "bioes" else "BI"
    return (OUTSIDE, *(f"{prefix}-{name}" for name in sorted(set(types)) for prefix in prefixes))


def _continues(before: str, tag: str) -> bool:
    return before[0] in "BI" and tag[0] in "IE" and type_of(before) == type_of(tag)


def _begins_with_b(tags: Sequence[str], entity: Entity, scheme: Scheme) -> bool:
    return scheme != "iob1" or (entity.start > 0 and type_of(tags[entity.start - 1]) == entity.type)


def _find_fault(before: str, tag: str, scheme: Scheme) -> str | None:
    """What is wrong with a tag after the one before it; None if nothing is."""
    if scheme == "bioes":
        if before[0] in "BI" and not _continues(before, tag):
            return (
                f"{before} is followed by {tag}, which neither goes on with the entity nor ends it"
            )
        if tag[0] in "IE" and not _continues(before, tag):
            return f"{tag} after {before} begins an entity, which B or S does"
        return None
    if tag[0] in "ES":
        return f"{tag} is a tag of bioes only"
    if scheme == "iob2" and tag[0] == "I" and not _continues(before, tag):
        return f"{tag} after {before} begins an entity, which B does in iob2"
    if (
        scheme == "iob1"
        and tag[0] == "B"
        and (before == OUTSIDE or type_of(before) != type_of(tag))
    ):
        return f"{tag} after {before}: iob1 writes B only where an entity follows another of its type at once"
    return None


def _first_fault(sentences: Sequence[TaggedSentence], scheme: Scheme) -> str | None:
    for tags, locate in sentences:
        if fault := check_tags(tags, scheme):
            index, reason = fault
            return f"{locate(index)}: {reason}"
    return None
