"""Converts between entities and the tags of words, in the schemes IOB1, IOB2 and BIOES.

A word outside of entities has the tag "O". Every other tag is one of the letters B, I, E and S, a
hyphen and the type of the entity, such as "B-PER". The schemes differ in their letters:

- IOB2: the first word of an entity has B, and all other words of it have I.
- IOB1: all words of an entity have I. Only if an entity directly follows another one of the same
  type, its first word has B.
- BIOES: as in IOB2, but the last word of an entity has E, and the word of an entity of one word has
  S.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

OUTSIDE = "O"

Scheme = Literal["iob1", "iob2", "bioes"]

TaggedSentence = tuple[Sequence[str], Callable[[int], str]]
"""The tags of a sentence, and a function from the index of a word to its file and line."""

_TAG = re.compile(r"O|[BIES]-.+", re.DOTALL)


class Entity(NamedTuple):
    """An entity of a type such as "PER", which covers the words `start` to `end - 1` of a sentence.

    Words are counted from 0.
    """

    type: str
    start: int
    end: int


def is_tag(text: str) -> bool:
    """Returns whether the text is a tag of any of the schemes."""
    return _TAG.fullmatch(text) is not None


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """Finds the entities in the tags of a sentence, as the program conlleval does.

    The tags may be of any scheme. A tag I or E continues an entity if the previous word has a tag B
    or I of the same type. Every other tag except "O" begins an entity.
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
    """Returns the tags of a sentence.

    Args:
        entities: The entities of the sentence, in order. They must not overlap.
        num_words: The number of words of the sentence.
        scheme: The scheme of the tags.
    """
    tags = [OUTSIDE] * num_words
    for name, start, end in entities:
        tags[start:end] = [f"I-{name}"] * (end - start)
        if scheme != "iob1" or (start > 0 and tags[start - 1][2:] == name):
            tags[start] = f"B-{name}"
        if scheme == "bioes":
            tags[end - 1] = f"{'S' if end - start == 1 else 'E'}-{name}"
    return tags


def find_scheme(sentences: Sequence[TaggedSentence]) -> Scheme:
    """Returns the scheme that all tags of a file follow.

    If there is a tag E or S, the scheme is BIOES. Otherwise it is IOB2, or IOB1 if the tags do not
    follow IOB2.

    Args:
        sentences: All sentences of the file.

    Raises:
        ValueError: The tags follow no scheme. The message names the first faulty tag.
    """
    is_bioes = any(tag[0] in "ES" for tags, _ in sentences for tag in tags)
    schemes: tuple[Scheme, ...] = ("bioes",) if is_bioes else ("iob2", "iob1")
    faults = []
    for scheme in schemes:
        sentence_faults = (_find_fault(tags, locate, scheme) for tags, locate in sentences)
        fault = next(filter(None, sentence_faults), None)
        if fault is None:
            return scheme
        faults.append(fault)
    raise ValueError(f"the tags are of no scheme: {', and '.join(faults)}; mend them")


def label_names(types: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Returns every tag that a scheme has for some types of entities, "O" first.

    Args:
        types: The types, such as "PER".
        scheme: The scheme.
    """
    prefixes = "BIES" if scheme == "bioes" else "BI"
    return (OUTSIDE, *(f"{prefix}-{name}" for name in sorted(set(types)) for prefix in prefixes))


def _find_fault(tags: Sequence[str], locate: Callable[[int], str], scheme: Scheme) -> str | None:
    """Returns words about the first tag of a sentence that does not follow a scheme, or None.

    Args:
        tags: The tags of the sentence.
        locate: Returns the file and line of a word, by the word's index.
        scheme: The scheme.
    """
    right_tags = write_tags(find_entities(tags), len(tags), scheme)
    for index, (tag, right_tag) in enumerate(zip(tags, right_tags, strict=True)):
        if tag != right_tag:
            return f"{locate(index)}: {tag} stands where {scheme} has {right_tag}"
    return None
