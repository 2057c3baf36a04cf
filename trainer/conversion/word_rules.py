"""Finds out by which rule a model's text is split into words, from the files in its folder."""

from collections.abc import Mapping
from typing import Any

from pipeline.storage.folder import Folder
from tokenizer.word_rule import AS_THEY_STAND, WordRule
from trainer.conversion.export import read_json
from trainer.conversion.names import TOKENIZER, TOKENIZER_CONFIG


def said_word_rule(
    tokenizer: Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> WordRule | None:
    """Returns the rule by which text becomes words, as far as a model's files state it.

    If there is a tokenizer.json, it alone decides. Otherwise tokenizer_config.json does.

    Args:
        tokenizer: The content of tokenizer.json; None if there is no such file.
        settings: The content of tokenizer_config.json; empty if there is no such file.

    Returns:
        The rule, or None if the files do not state one that is known here.
    """
    if tokenizer is not None:
        if _get(tokenizer.get("pre_tokenizer"), "type") == "WhitespaceSplit":
            return AS_THEY_STAND
        normalizer = tokenizer.get("normalizer")
        if normalizer is None or _get(normalizer, "type") == "BertNormalizer":
            return WordRule(bool(_get(normalizer, "lowercase")))
        return None
    if "do_lower_case" in settings:
        return WordRule(bool(settings["do_lower_case"]))
    return None


def guess_word_rule(vocab: bytes | None) -> WordRule:
    """Guesses the word rule from a vocabulary: text is lower-cased if no token has a capital.

    Tokens that begin with "[", such as [MASK], do not count.

    Args:
        vocab: The content of vocab.txt. None counts as a vocabulary without capitals.
    """
    tokens = (vocab or b"").decode(errors="replace").split("\n")
    has_capitals = any(token != token.lower() for token in tokens if not token.startswith("["))
    return WordRule(not has_capitals)


def refuse_other_words(model: str, run: str, options: Mapping[str, Any] | None = None) -> None:
    """Refuses to start from a model whose text was split into words by another rule.

    Args:
        model: The folder of the model. A model that does not state its rule is accepted.
        run: The folder with the vocab.txt and tokenizer.json of the run or of its dataset.
        options: Options of the filesystem of folders at URLs.

    Raises:
        ValueError: Both state a rule, and the rules differ.
    """
    theirs = _read_word_rule(model, options)
    ours = _read_word_rule(run, options)
    if theirs is None or ours is None or theirs == ours:
        return
    flags = f"--lower_case {str(theirs.lower_case).lower()} --words {theirs.words}"
    raise ValueError(
        f"{model} reads text that is {_describe(theirs)}, the dataset's is {_describe(ours)}, so"
        f" that the same text has other tokens; build the dataset with {flags}, or start from"
        " another model"
    )


def _describe(rule: WordRule) -> str:
    """Returns what a word rule does to text, in words for a message."""
    if rule.keeps_words:
        return "cut at blanks alone"
    return "lower-cased" if rule.lower_case else "cased"


def _read_word_rule(folder: str, options: Mapping[str, Any] | None = None) -> WordRule | None:
    """Returns the word rule that the files in a folder state, or None if they state none."""
    files = Folder(folder, options)
    tokenizer = read_json(folder, TOKENIZER, options) if files.exists(TOKENIZER) else None
    settings: dict[str, Any] = {}
    if files.exists(TOKENIZER_CONFIG):
        settings = read_json(folder, TOKENIZER_CONFIG, options)
    return said_word_rule(tokenizer, settings)


def _get(value: Any, key: str) -> Any:
    """Returns the value of a key of a JSON object; None for a value that is no object."""
    return value.get(key) if isinstance(value, dict) else None
