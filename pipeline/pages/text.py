"""Text and numbers for a page: markup escaped, what would act unseen written out. Standard library only."""

import html
import math
import unicodedata

_HARMLESS_FORMATS = "\u200c\u200d"  # joiners, which several scripts and emoji need


def escape(text: object) -> str:
    """Text for HTML, in elements and in attributes: markup is escaped, and what would act unseen is written out.

    Control characters, bidirectional overrides and lone surrogates become ⟨U+202E⟩ and the like.
    """
    return "".join(map(_show, html.escape(str(text))))


def nice_ceiling(value: float) -> float:
    """The smallest 1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6 or 8 times a power of ten that is not below the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        power * factor
        for factor in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)
        if value <= power * factor * (1 + 1e-9)
    )


def short_number(value: float) -> str:
    """A count of at most four characters or so: 950, 17.7k, 2.5M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _show(character: str) -> str:
    is_hidden = (
        unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        and character not in _HARMLESS_FORMATS
    )
    return f"⟨U+{ord(character):04X}⟩" if is_hidden else character
