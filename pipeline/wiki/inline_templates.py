"""Shows templates within a sentence: "{{lang|fr|mot}}" as "mot", "{{convert|5|km}}" as "5 km".

The text that a template shows is defined on another page of the wiki, so most templates are
removed. The templates in `_TABLE` stand for a word or a number of a sentence. They are the most
frequent ones in articles of 110 languages.

A row of the table is `names = ways`: the names of templates, and the ways to show them. Both lists
are divided by " | ". A row continues on the next line if its line ends in "|". A way can be used if
the call gives all arguments that the way contains, and none of them is empty. The first way that
can be used is taken. A way may contain:

- `{1}`: the first argument without a name.
- `{text}`: the argument with this name.
- `{0}`: the name of the template.
- `{~}`: a measure, which is the numbers and the words between them, up to the first unit.
- `_`: a space.

The first letter of a name may be small or large.
"""

import re
from functools import cache
from itertools import product

from pipeline.wiki.dump import LANGUAGES

_MAX_CALL_BYTES = 1000  # a longer template is a block, not a part of a sentence
_MAX_ARGUMENTS = 12  # further arguments are ignored
_BETWEEN_NUMBERS = frozenset({"to", "and", "or", "by", "x", "×", "-", "–", "+/-", "±"})
_SIGNS = tuple("0123456789+-.,−")
_ROMAN = "I II III IV V VI VII VIII IX X"
_KEY = re.compile(r"\{([^{}]+)\}")

_TABLE = """
nowrap | nobr | nobreak | nobold | noitalic | no italic | nowr | abbr | abbrv | abréviation |
tooltip | comment | hover | small | smaller | petit | big | larger | sc | smallcaps | small caps |
sc2 | maiuscoletto | smcp | mono | code | tt | kbd | var | em | strong | bold | italic | math |
mvar | sub | sup | overline | underline | chem2 | unicode | not a typo | as written | proper name |
visible anchor | vanchor | linktext | nastaliq | rail gauge | railGauge | track gauge |
script/Arabic | script/Hebrew | script/Greek | script/Cyrillic | script | latin | respell-text |
ruby | ルビ | lang-ja2 | lang-cu2 | lang-grc | lang-grc-gre | lang-rus | lang-ua | lang-sr-Latn |
lang-sr-Cyrl | lang-zh-hans | lang-zh-hant | lj | rTGS | pIE | lang-en-short |
lang-de-short | lang-fr-short |
lang-it-short | lang-es-short | lang-ru-short | lang-la-short | lang-el-short | lang-nl-short |
lang-pt-short | k-de | k-en | k-sv | k-fr | k-ru | enS | deS | frS | esS | itS | laS | ruS | plS |
elS | en | آلمانی | јез-нем | јез-длс | јез-енгл | vok | angl | citazione necessaria | 要出典範囲 |
いつ範囲 | 誰範囲 | date- | nts | ntsh | fmtn | formatnum: | szám | tA | number | число | keypress |
pDFlink | আনুমানিক | clarify span | fact span | lang-sh-Latn | script/Nastaliq | de | vol-en |
vol-de | vol-fr | vol-es | vol-ru | vol-pl | vol-la | vol-lv | vol-lt | vol-da = {1}
clarify | weasel inline = {text}
lang | langx | langue | rtl-lang | lang-x | en langue | lang2 | jęz. | jęz = {2} | {text} | {texte}
langwithname = {3}
color | colour | font color | fontcolor | resize | audio = {2}
transl | transliteration | translit | wikt-lang | wt-lang = {3} | {2}
zh | lang-zh | zh-full | chinese = {s} | {t} | {c} | {1}
nihongo | nihongo krt | korean = {1} ({2}, {3}) | {1} ({2}) | {1} | {2}
読み仮名 | 読み仮名 ruby不使用 = {1}（{2}） | {1}
angbr | angle bracket | angbr IPA = ⟨{1}⟩
iPAblink | iPA blink = [{1}]
iPAslink = /{1}/
仮リンク = {label} | {1}
ill | interlanguage link | interlanguage link multi | link-interwiki | iWL = {lt} | {1}
tsl = {4} | {3}
le | link-en | link-de | link-fr | link-ja | link-ru = {3} | {1}
lien = {texte} | {trad fr} | {fr} | {1}
нп | нп1 | нп2 | нп3 | нп4 | нп5 | iw | iw2 | не переведено | не переведено 2 | не переведено 5 |
не перекладено = {2} | {1}
convert | cvt | conversie | unité | unidad | রূপান্তর | convertir | converter | vertaal maat |
перевод | unité/2 = {~}
nombre | tmp | температура = {1} {2} | {1}
val = {1}×10{e} {u} | {1}×10{e} | {1} {u} | {1}
exp = {1}×10{2} | 10{1}
frac | fraction | sfrac = {1} {2}/{3} | {1}/{2} | 1/{1}
gaps = {1}{2}{3}{4} | {1}{2}{3} | {1}{2} | {1}
chem = {1}{2}{3}{4}{5}{6} | {1}{2}{3}{4}{5} | {1}{2}{3}{4} | {1}{2}{3} | {1}{2} | {1}
simpleNuclide = {1}-{2}
solar luminosity = {1} L☉
solar mass = {1} M☉
solar radius = {1} R☉
höhe = {1} m
m s.l.m. = m s.l.m.
circa | c. | ca. = c. {1}–{2} | c. {1} | c.
floruit | fl. = fl. {1}–{2} | fl. {1} | fl.
as of = as of {3} {2} {1} | as of {2} {1} | as of {1}
As of = As of {3} {2} {1} | As of {2} {1} | As of {1}
date | daton | date de naissance | date de décès = {1} {2} {3} | {1} {2} | {2} {3} | {1}
dash year = {1}–{2}
tính đến = tính đến {1}
heure = {1} h {2} | {1} h
incise = – {1} –
p. = p. {1}–{2} | p. {1}
numéro | n° | num. = no {1} | no
s = {1}{2} siècle | {1}
s- | sap- = {1}e siècle
s2- = {1}{2} et {3}{4} siècles
séc | século = século {1}
siglo = siglo {1}
euro | eur | EUR | € = {1} €
uSD | uS$ | us$ = US${1}
cAD | c$ = CA${1}
gBP | £ | GBP = £{1}
jPY | ¥ = ¥{1}
iNR | ₹ | iNRConvert = ₹{1}
iSBN | iSSN = {0} {1}
আইএসবিএন = ISBN {1}
dOI | doi = doi:{1}
iETF RFC = RFC {1}
harvtxt | harvcoltxt = {1} and {2} ({3}) | {1} ({2})
uSS | hMS | rMS | sS | mS | mV | hMAS | hMCS | uSNS | sMS = {0} {1} ({2}) | {0} {1}
ship = {1} {2} ({3}) | {1} {2}
sclass | sclass- | sclass2 | sclass2- = {1}-class {2}
sortname = {1} {2}
' | 's | – | — | • | · | 1er | 1re | ier | cf. = {0}
ndash | en dash | endash = –
mdash | em dash | emdash | mdashb = —
snd | spnd | spaced ndash | spaced en dash = _–_
nbsp | nbs | sp | space | thinsp | thin space | hair space | hsp = _
okina | ʻokina | wg-apos = ʻ
apostrophe = '
pi = π
"""


@cache
def read_table() -> dict[str, str]:
    """Reads `_TABLE`, and adds templates whose names follow a rule, such as "lang-" and a code.

    Returns:
        By the name of each template the ways to show it, as one text in which "|" divides the ways
        and "_" has become a space. A name is there both with a small and with a capital first
        letter. The dict is shared by all callers; do not change it.
    """
    ways_of: dict[str, str] = {}
    for row in _TABLE.strip().replace("|\n", "| ").split("\n"):
        names, _, ways = row.partition(" = ")
        ways_of.update(
            dict.fromkeys(names.split(" | "), ways.replace("_", " ").replace(" | ", "|"))
        )
    for code in LANGUAGES:
        ways_of.setdefault(f"lang-{code}", "{1}|{text}")
        ways_of.setdefault(f"internal link helper/{code}", "{1}")
    for number in range(2, 100):
        ways_of.setdefault(f"{number}e", "{0} {1}|{0}")
    for tens, unit in product(("", "X", "XX"), _ROMAN.split()):
        if len(tens + unit) > 1:
            ways_of.setdefault(tens + unit, "{0}")
        ways_of.setdefault(f"{tens}{unit}e siècle", "{0}")
    for name, ways in list(ways_of.items()):
        ways_of.setdefault(name[0].upper() + name[1:], ways)
        ways_of.setdefault(name[0].lower() + name[1:], ways)
    return ways_of


def show(call: str) -> str:
    """Returns the text that a template shows in a sentence.

    The result is empty if the template is not in the table, or if none of its ways can be used. It
    is also empty if the call is longer than 1,000 bytes, or if the text would have several lines.

    Args:
        call: The text between the braces of the template. Links and templates in it are already
            replaced by the text that they show. In a call like "formatnum:10" the name is
            "formatnum:", and the first argument follows the colon.
    """
    name, _, arguments = call.partition("|")
    name = name.strip()
    if name not in read_table() or name.endswith(":"):
        before_colon, colon, _ = name.partition(":")
        name = before_colon + colon
        arguments = call.strip()[len(name) :]
    if name not in read_table() or len(call.encode()) > _MAX_CALL_BYTES:
        return ""

    positional, named = _read_arguments(arguments.split("|")[:_MAX_ARGUMENTS])
    numbered = {str(number): value for number, value in enumerate(positional, 1)}
    values = numbered | named | {"0": name, "~": _measure(positional)}
    for way in read_table()[name].split("|"):
        if all(values.get(key) for key in _KEY.findall(way)):
            shown = _KEY.sub(lambda key: values[key[1]], way)
            return "" if "\n" in shown else shown
    return ""


def _read_arguments(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Divides the arguments of a template into those without and those with a name.

    Args:
        arguments: The arguments, each as it is written between two pipes: "km" or "abbr=on".

    Returns:
        The values without a name, in order; and a dict from each name to its value. If a name is
        given twice, its first value counts.
    """
    positional: list[str] = []
    named: dict[str, str] = {}
    for argument in arguments:
        name, equals_sign, value = argument.partition("=")
        if equals_sign:
            named.setdefault(name.strip(), value.strip())
        else:
            positional.append(argument.strip())
    return positional, named


def _measure(positional: list[str]) -> str:
    """Returns the measure at the beginning of a template's arguments, such as "5 to 10 km".

    It consists of the arguments up to the first unit, joined by spaces, or of all of them if there
    is no unit. A unit is an argument that is neither a number nor a word between numbers, such as
    "to".

    Args:
        positional: The arguments without a name.
    """
    for num_arguments, argument in enumerate(positional, 1):
        is_unit = not argument.startswith(_SIGNS) and argument not in _BETWEEN_NUMBERS
        if is_unit:
            return " ".join(positional[:num_arguments])
    return " ".join(positional)
