"""Extends the rules by which `sentencex` finds the ends of sentences.

`sentencex` does not know the stops of some scripts, and takes the stop of some abbreviations for
the end of a sentence. `mark_stops` changes a line before it is given to `sentencex`: it replaces
the unknown stops by a stop that `sentencex` knows, and the stops of these abbreviations by letters.
Apostrophes that `sentencex` would take for the beginning of a quotation are replaced too. Each
character is replaced by one character, so the positions that `sentencex` finds are valid in the
original line.
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
    """Replaces characters of a line, so that `sentencex` finds the correct ends of its sentences.

    The result has the same length. It serves only to find where sentences end; their text is then
    cut from the original line.

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
    """Returns a matched abbreviation with "x" in place of each stop and of a space after it."""
    return re.sub(r"\. ?", lambda stop: _LETTER * len(stop[0]), found[0])


class _Rules(NamedTuple):
    """The patterns of one language.

    Attributes:
        stops: Patterns that match a single stop after an abbreviation, where no sentence ends.
        words_with_stops: A pattern that matches whole abbreviations with several stops, such as
            "d.w.z."; None if the language has none.
        apostrophe: A pattern that matches the apostrophe of shortened words such as the Dutch 's,
            where no quotation begins; None if the language has none.
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
    """Returns a pattern that matches a stop if one of some abbreviations is before it.

    The pattern begins with the stop and looks back at the abbreviation. That is faster than a
    pattern that begins with a choice of abbreviations.

    Args:
        words: The abbreviations, without their stop.
        follows: A lookahead, `(?=...)`, for what must follow the stop.

    Returns:
        The pattern; an empty text if there are no words.
    """
    by_length: dict[int, list[str]] = {}
    for word in words:
        by_length.setdefault(len(word), []).append(re.escape(word))
    behind = [rf"(?<=\b(?:{'|'.join(same)})\.)" for same in by_length.values()]
    return rf"\.{follows}(?:{'|'.join(behind)})" if behind else ""
