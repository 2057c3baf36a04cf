"""Checks that a vocabulary which the user gave fits the words of the text."""

from collections.abc import Sequence

from pipeline.storage.terminal import say
from tokenizer.vocab import CONTINUATION, SPECIAL_TOKENS, Vocabulary
from tokenizer.word_rule import CASED, WordRule

_NUM_SHOWN = 5
_MOST_IMPOSSIBLE = 0.5  # share of entries
_CASED = 0.05
"""A vocabulary is taken as cased if a larger share of its entries have capitals or accents. In
BERT's cased vocabulary 31 % have them, in the uncased one none."""


def check_vocabulary(vocabulary: Vocabulary, rule: WordRule, where: str) -> None:
    """Checks that the entries of a user's vocabulary can occur under the build's word rule.

    Args:
        vocabulary: The vocabulary.
        rule: How the build's text becomes words.
        where: The file or model that the vocabulary is from, for messages.

    Raises:
        ValueError: Most entries can never occur, or the vocabulary is cased and text is
            lower-cased.
    """
    entries = [
        token.removeprefix(CONTINUATION)
        for token in vocabulary.tokens
        if token not in SPECIAL_TOKENS and not token.startswith("[unused")
    ]
    impossible = _find_impossible(entries, rule)
    shown = ", ".join(map(repr, impossible[:_NUM_SHOWN]))
    counted = f"{where}: {len(impossible):,} of {len(entries):,} entries"
    if rule.lower_case:
        num_cased = len(impossible) - len(_find_impossible(impossible, CASED))
        if num_cased > _CASED * len(entries):
            raise ValueError(
                f"{counted} have capitals or accents, such as {shown}, and the text is lower-cased;"
                " give --lower_case false, or the vocabulary of an uncased model"
            )
    if len(impossible) > _MOST_IMPOSSIBLE * len(entries):
        raise ValueError(
            f"{counted} can never be made, such as {shown}: BERT's words end at blanks and"
            " punctuation; give --words whitespace --lower_case false where words stand between"
            " blanks, or the vocabulary of this text"
        )
    has_capitals = any(entry != entry.lower() for entry in entries)
    has_case = any(entry != entry.upper() for entry in entries)
    if rule == CASED and has_case and not has_capitals:
        say(
            f"{where}: no entry has a capital, and the text keeps its own, which become [UNK]; give"
            " --lower_case true, unless the text is lower-cased already"
        )


def _find_impossible(entries: Sequence[str], rule: WordRule) -> list[str]:
    """Returns the entries that the rule would change or divide, so that no text has them as words.

    They are in the order of `entries`.
    """
    split = rule.split
    return [entry for entry in entries if split(entry) != [entry]]
