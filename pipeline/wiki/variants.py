"""Renders "-{zh-hans:..; zh-hant:..}-", the markup of languages with several scripts or variants.

The rules are those of MediaWiki's language converter for readers who chose no variant. The variant
that comes first in `_PREFERRED` is shown, as on the wiki itself.
"""

import re

_CODES = """
zh zh-hans zh-hant zh-cn zh-tw zh-hk zh-mo zh-sg zh-my gan gan-hans gan-hant wuu wuu-hans wuu-hant
sr sr-ec sr-cyrl sr-el sr-latn sh sh-cyrl sh-latn kk kk-cyrl kk-kz kk-latn kk-tr kk-arab kk-cn
ku ku-latn ku-arab tg tg-cyrl tg-latn uz uz-latn uz-cyrl crh crh-latn crh-cyrl iu ike-cans ike-latn
shi shi-tfng shi-latn tly tly-cyrl mni mni-mtei mni-beng ban ban-bali ban-x-dharma ban-x-palmleaf
ban-x-pku en en-x-piglatin
"""
_PREFERRED = tuple(_CODES.split())
"""Codes of variants. Within a language they are in the order in which MediaWiki prefers them."""

_FLAGS = frozenset("ADHNRST+-")
_NOT_SHOWN = frozenset("DHNT+-")
_CODE = "|".join(sorted(map(re.escape, _PREFERRED), key=len, reverse=True))
_RULE_END = re.compile(rf";(?=\s*(?:{_CODE})\s*:|[^;]*?=>\s*(?:{_CODE})\s*:|\s*\Z)", re.IGNORECASE)
_RULE = re.compile(rf"(?:.*?=>)?\s*({_CODE})\s*:(.*)", re.DOTALL | re.IGNORECASE)


def convert(content: str) -> str:
    """Returns the text that a page shows for "-{" ... "}-".

    Usually the content has rules such as "zh-hans:..; zh-hant:..", and the text of one variant is
    shown. Content without rules is shown unchanged. Flags and a bar may come before the rules, as
    in "H|zh-hans:..". Some flags make the markup invisible, because it only defines or removes a
    rule of conversion, sets the title, or asks for the name of a variant. The result is then empty.

    Args:
        content: The text between "-{" and "}-", in which other markup was already rendered.
    """
    before_bar, bar, text = content.partition("|")
    flags = {flag.strip() for flag in before_bar.split(";")} if bar else set()
    are_known = all(flag.upper() in _FLAGS or flag.lower() in _PREFERRED for flag in flags)
    if not (flags and are_known):
        flags = set()
        text = content

    names = {flag.upper() for flag in flags}
    if names & _NOT_SHOWN and "A" not in names:
        return ""
    rules = {} if "R" in names else _read_rules(text)
    if not rules:
        return text
    choices = {code: variant for code, variant in rules.items() if variant} or rules
    return next(choices[code] for code in _PREFERRED if code in choices)


def _read_rules(text: str) -> dict[str, str]:
    """Reads rules such as "sr-ec: ..; sr-el: ..".

    Returns:
        A dict from the code of each variant to its text. It is empty if any part of the text is no
        rule, because all of the text is then plain text.
    """
    rules: dict[str, str] = {}
    for part in _RULE_END.split(text):
        rule = _RULE.fullmatch(part)
        if rule:
            rules.setdefault(rule[1].lower(), rule[2].strip())
        elif part.strip():
            return {}
    return rules
