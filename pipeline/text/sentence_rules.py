"""Extends the rules of `sentencex`: stops that it does not know, and stops that end no sentence.

`mark_stops` replaces such stops by other characters, so that `sentencex` splits rightly. The number
of characters stays the same, so the sentences can be cut from the original text.
"""

import re
from functools import cache
from typing import NamedTuple

# Stops that `sentencex` does not know: of Khmer, Tibetan and Dzongkha, Balinese, Coptic, Chinese
# from top to bottom, Tulu and Kirat Rai.
_STOPS = (
    "\u17d4\u17d5\u0f0d\u0f0e\u0f0f\u0f10\u0f11\u0f14\u1b4e\u1b4f\u1b7f\u2cf9\u2cfa\u2cfb"
    "\ufe12\ufe15\ufe16\U000113d4\U000113d5\U00016d6e\U00016d6f"
)
_OTHER_STOPS = re.compile(f"[{_STOPS}](?! ?[{_STOPS}])")  # the last one of several in a row
_KNOWN_STOP = "。"  # ends a sentence in any language, with or without a space after it
# Initials as in "J.-P. Sartre". After "av. J.-C." (before Christ) a sentence may end.
_INITIALS = re.compile(
    r"(?<!\w)(?:J\.-(?=C\. ?[A-Z\u00c0-\u00de])"
    r"|[A-Z\u00c0-\u00de]\.-[A-Z\u00c0-\u00de]\.(?=,| ?\w))"
)
_LETTER = "x"
_CAPITAL = "X"

_BEFORE_NAMES = {
    "en": "Ms Mmes Amb",
    "fr": "M MM Mme Mmes Mlle Mlles Me Mgr Dr Drs Pr St Ste col lt gén ap",
    "nl": "mevr mw ds jhr Mevr Mw Ds Jhr o.a d.w.z O.a D.w.z",
    "it": "on On dott.ssa Dott.ssa prof.ssa Prof.ssa pag pagg Pag Pagg",
    "de": "Dipl Hrn Frl",
    "es": "D Dª Cnel Mons",
    "pt": "Srta D Profa Cap Cel Pe Fr",
    "pl": "dr inż mgr hab św gen płk kpt ks m.in tzw tj Dr Inż Mgr Św Gen Płk Kpt Ks Tzw",
    "ru": "т.е т.к т.н им ген св Им Ген Св",
    "sv": "t.ex dvs",
    "da": "bl.a",
    "nb": "f.eks",
    "tr": "Doç Av Sn Müh bkz örn",
    "ca": "St",
    "ro": "dl Dl d-l D-l Sf",
    "hu": "ifj özv Ifj Özv Sz Szt",
    "el": "Καθ",
}
"""Abbreviations by language whose stop ends no sentence if another word follows.

A space may follow a stop within the abbreviation.
"""

_BEFORE_NUMBERS = {
    "en": (
        "Eq Eqs Eqn Eqns Fig Figs Sec Secs Sect Sects Ch Chap Chaps Vol Vols Ref Refs Tab Thm Lem"
        " Prop Def Cor App Ex Alg Bk eq eqs fig figs sec sect ch chap vol vols ref refs"
    ),
    "fr": "fig chap vol éq art p pp",
    "de": "Gl Abb Bd Kap Tab Abs",
    "es": "pág págs fig cap vol núm ec",
    "pt": "pág vol cap p núm nº fig eq",
    "it": "eq fig cap vol pag pagg",
    "nl": "verg fig hfst",
    "pl": "nr str rys tab",
    "ru": "рис табл гл",
    "uk": "рис табл",
    "sv": "kap fig",
    "nb": "kap fig",
    "ca": "pàg",
    "ro": "pag fig",
    "el": "σελ",
}
"""Abbreviations by language whose stop ends no sentence if a number follows, even in brackets."""

_SHORTENED_WORDS = {
    "nl": "s t n k m r",
    "af": "n k",
    "fy": "t s n k",
    "li": "t s n",
    "nds": "n t",
    "vls": "t s n k",
    "zea": "t s n",
}
"""Words by language that are written after an apostrophe, such as the Dutch 's.

`sentencex` would take the apostrophe for the beginning of a quotation.
"""


def mark_stops(line: str, language: str) -> str:
    """Returns a line of the same length in which `sentencex` finds the right ends of sentences.

    Args:
        line: A line of text.
        language: The code of its language.
    """
    if not line.isascii():
        line = _OTHER_STOPS.sub(_KNOWN_STOP, line)
    rules = _rules(language.partition("-")[0])
    for pattern in rules.stops:
        line = pattern.sub(_LETTER, line)
    if rules.words_with_stops:
        line = rules.words_with_stops.sub(_without_stops, line)
    if ".-" in line:
        line = _INITIALS.sub(_without_stops, line)
    if rules.apostrophe:
        line = rules.apostrophe.sub(_CAPITAL, line)
    return line


def _without_stops(found: re.Match[str]) -> str:
    """Returns the matched text with letters in place of its stops and the spaces after them."""
    return re.sub(r"\. ?", lambda stop: _LETTER * len(stop[0]), found[0])


class _Rules(NamedTuple):
    """The patterns of one language.

    Attributes:
        stops: Patterns of stops that end no sentence.
        words_with_stops: Pattern of abbreviations with several stops, such as "d.w.z.", or None.
        apostrophe: Pattern of apostrophes that begin no quotation, or None.
    """

    stops: list[re.Pattern[str]]
    words_with_stops: re.Pattern[str] | None
    apostrophe: re.Pattern[str] | None


@cache
def _rules(language: str) -> _Rules:
    """Returns the patterns of a language, given by its code without a script or a country."""
    before_names = _BEFORE_NAMES.get(language, "").split()
    before_numbers = _BEFORE_NUMBERS.get(language, "").split()
    stops = [
        _stop_behind([word for word in before_names if "." not in word], r"(?= \S)"),
        _stop_behind(before_numbers, r"(?= ?[(\[]?\d)"),
    ]
    several = [re.escape(word).replace(r"\.", r"\. ?") for word in before_names if "." in word]
    words_with_stops = rf"(?<![\w.-])(?:{'|'.join(several)})\.(?= ?\S)"
    shortened = "|".join(_SHORTENED_WORDS.get(language, "").split())
    apostrophe = rf"(?<!\w)['\u2019](?=(?:{shortened})\b)"
    return _Rules(
        [re.compile(stop) for stop in stops if stop],
        re.compile(words_with_stops) if several else None,
        re.compile(apostrophe) if shortened else None,
    )


def _stop_behind(words: list[str], follows: str) -> str:
    """Returns a pattern that matches the stop after any of some words.

    The pattern begins with the stop and looks back at the word, which is faster than beginning with
    a choice of words. It is empty if there are no words.

    Args:
        words: The words, without their stop.
        follows: A pattern that must match after the stop.
    """
    by_length: dict[int, list[str]] = {}
    for word in words:
        by_length.setdefault(len(word), []).append(re.escape(word))
    behind = [rf"(?<=\b(?:{'|'.join(same)})\.)" for same in by_length.values()]
    return rf"\.{follows}(?:{'|'.join(behind)})" if behind else ""
