r"""Renders a page's wikitext as the text that it shows, in lines; `_wikitext` is this in C.

The page is read once, from left to right. When a link, a template, a table or a reference is
opened, a frame is put on a stack, and the opener is written as plain text. When it is closed, the
text that was written since then is removed (templates, tables, references, files), or a part of it
is kept (links). So an opener that is never closed stays as text, and no markup is read twice.
Beyond `_MAX_DEPTH` frames openers are plain text. `_wikitext.c` has a function for each function of
this file, by the same name.

Lists, headings and all other markup of whole lines are left to wikitext.py. An item of an HTML list
is written between the lines "\n\0\n" and its end.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from html.entities import name2codepoint

from pipeline.wiki.inline_templates import show
from pipeline.wiki.variants import convert

ENTITIES = name2codepoint | {"apos": ord("'")}
LIST_MARK = "\0"
_ITEM_MARK = f"\n{LIST_MARK}\n"
_MAX_DEPTH = 100
_MAX_SCHEME = 9  # characters
_MAX_UNICODE = 0x10FFFF

_DROPPED = """
references gallery math chem score timeline imagemap syntaxhighlight source graph hiero categorytree
inputbox templatedata mapframe maplink indicator style script
"""
_WRITTEN = "nowiki pre ce"
_KNOWN = """
abbr b bdi bdo big blockquote caption center cite code data del dfn div dl em font h1 h2 h3 h4 h5 h6
hr i img includeonly ins kbd langconvert link mark meta noinclude ol onlyinclude p poem q rp rt ruby
s samp section small span strike strong sub sup td templatestyles th time tr translate tt tvar u ul
var wbr
"""
VANISH, BREAK, LIST_ITEM, TABLE_TAG, REFERENCE_TAG, RAW_DROPPED, RAW_WRITTEN = range(7)
TAGS = dict.fromkeys(_KNOWN.split(), VANISH)
TAGS |= {"br": BREAK, "table": TABLE_TAG, "ref": REFERENCE_TAG}
TAGS |= dict.fromkeys(("li", "dd", "dt"), LIST_ITEM)
TAGS |= dict.fromkeys(_DROPPED.split(), RAW_DROPPED) | dict.fromkeys(_WRITTEN.split(), RAW_WRITTEN)
"""What each tag does. A raw tag ends with the first closer of its name, and holds no wikitext."""

_PLAIN = "bitcoin geo magnet mailto news sip sips sms tel urn xmpp"
_SLASHED = "ftp ftps git gopher http https irc ircs mms nntp redis sftp ssh svn telnet worldwind"
SCHEMES = dict.fromkeys(_PLAIN.split(), False) | dict.fromkeys(_SLASHED.split(), True)
"""Whether two slashes must follow the scheme of an address."""

_SPECIAL = re.compile(r"[\n&:<\[\]{|}]")
_OPEN_BRACES = re.compile(r"\{+")
_CLOSE_BRACES = re.compile(r"\}+")
_SCHEME = re.compile(rf"([A-Za-z0-9]{{0,{_MAX_SCHEME}}}):(//)?")
_LETTERS_AT_END = re.compile(rf"[A-Za-z]{{0,{_MAX_SCHEME + 1}}}\Z")
_TAG_NAME = re.compile(r"[A-Za-z0-9]{0,15}")
_ENTITY = re.compile(r"&(?:#[xX]([0-9A-Fa-f]+)|#([0-9]+)|([A-Za-z0-9]{1,8}));")
_ADDRESS_END = re.compile(r"[\0- \[\]<>\"\s]|''")
_ADDRESS_END_IN_CALL = re.compile(rf"{_ADDRESS_END.pattern}|\||\}}\}}")
_ADDRESS_END_IN_VARIANTS = re.compile(rf"{_ADDRESS_END.pattern}|\}}-")
_ADDRESS_END_IN_BOTH = re.compile(rf"{_ADDRESS_END_IN_CALL.pattern}|\}}-")
_SPACES = re.compile(r"\s*")


class _Kind(Enum):
    BRACES = auto()
    LINK = auto()
    EXTERNAL = auto()
    TABLE = auto()
    HTML_TABLE = auto()
    REFERENCE = auto()
    ITEM = auto()
    VARIANTS = auto()


@dataclass
class _Frame:
    """A piece of markup that was opened and is not closed yet."""

    kind: _Kind
    out: int
    """Where its opener is among the pieces that were written."""
    source: int
    """Of the character behind the opener."""
    num_braces: int = 0
    """Of BRACES: those not closed yet."""
    text: int = 0
    """Of LINK and EXTERNAL: the first piece behind the pipe or the address."""
    title_end: int | None = None
    """Of LINK: its first pipe."""


def render(text: str, is_hidden: Callable[[str], bool]) -> str:
    """Returns the text of a page.

    Args:
        text: The wikitext.
        is_hidden: Tells of a link's title that has a colon whether the link is not shown.
    """
    return _Reader(text, is_hidden).read()


class _Reader:
    def __init__(self, text: str, is_hidden: Callable[[str], bool]) -> None:
        self.text = text
        self.is_hidden = is_hidden
        self.at = 0
        self.run = 0
        """From here to the markup at hand, characters were written as they are."""
        self.pieces: list[str] = []
        """What was written, without empty pieces."""
        self.frames: list[_Frame] = []
        self.unclosed: set[str] = set()
        """Raw tags that have no closer further on, so that it is looked for once."""
        self.last_close = text.rfind(">")
        self.close = self.close_from = -1
        """The next ">" from any character between them."""

    def read(self) -> str:
        actions = {
            "\n": self.read_line_end,
            "&": self.read_entity,
            ":": self.read_colon,
            "<": self.read_tag,
            "[": self.read_open_bracket,
            "]": self.read_close_bracket,
            "{": self.read_open_braces,
            "|": self.read_pipe,
            "}": self.read_close_braces,
        }
        while self.at < len(self.text):
            self.run = self.at
            special = _SPECIAL.search(self.text, self.at)
            self.take((special.start() if special else len(self.text)) - self.at)
            if special:
                actions[special[0]]()
        return "".join(self.pieces)

    # Writing, and frames

    def emit(self, text: str) -> None:
        if text:
            self.pieces.append(text)

    def take(self, num_characters: int) -> None:
        """Writes the next characters as they are."""
        self.emit(self.text[self.at : self.at + num_characters])
        self.at += num_characters

    def is_in_title(self) -> bool:
        frame = self.frames[-1] if self.frames else None
        return bool(frame and frame.kind is _Kind.LINK and frame.title_end is None)

    def nearest(self, kind: _Kind) -> int:
        """Returns the index of the innermost frame of a kind that may be closed here, or -1.

        Markup within braces or a table closes no frame outside of them. There are two exceptions: a
        reference, and, from within a table, braces.
        """
        for index in range(len(self.frames) - 1, -1, -1):
            frame = self.frames[index]
            if frame.kind is kind:
                return index
            is_wall = frame.kind in (_Kind.BRACES, _Kind.TABLE) and kind is not _Kind.REFERENCE
            if is_wall and not (frame.kind is _Kind.TABLE and kind is _Kind.BRACES):
                return -1
        return -1

    def open_frame(self, kind: _Kind, num_characters: int) -> _Frame | None:
        """Writes an opener as text and opens its frame; returns None if the stack is full."""
        frame = None
        if len(self.frames) < _MAX_DEPTH:
            frame = _Frame(kind, len(self.pieces), self.at + num_characters)
            self.frames.append(frame)
        self.take(num_characters)
        return frame

    def drop_frame(self, index: int) -> None:
        """Removes the text of a frame, and the frames in it that were never closed."""
        del self.pieces[self.frames[index].out :]
        del self.frames[index:]

    def keep_piece(self, index: int, kept: str) -> None:
        """Replaces the text of a frame by `kept`."""
        self.drop_frame(index)
        self.emit(kept)

    def starts_line(self) -> bool:
        start = self.at
        while start > 0 and self.text[start - 1] in " \t:":
            start -= 1
        return start == 0 or self.text[start - 1] == "\n"

    # Braces, pipes and lines

    def read_open_braces(self) -> None:
        found = _OPEN_BRACES.match(self.text, self.at)
        assert found is not None, "it is called at a brace"
        num_braces = len(found[0])
        if num_braces % 2 and self.text.startswith("-", self.at - 1) and self.at > self.run:
            self.open_variants()
            num_braces -= 1
        if num_braces > 1:
            frame = self.open_frame(_Kind.BRACES, num_braces)
            if frame:
                frame.num_braces = num_braces
        elif num_braces and self.text.startswith("|", self.at + 1) and self.starts_line():
            self.open_frame(_Kind.TABLE, 2)
        else:
            self.take(num_braces)

    def open_variants(self) -> None:
        """Opens a frame of "-{" at the brace; the "-" was already written as text."""
        before = self.pieces.pop()[:-1]
        self.emit(before)
        self.at -= 1
        self.open_frame(_Kind.VARIANTS, 2)

    def read_close_braces(self) -> None:
        found = _CLOSE_BRACES.match(self.text, self.at)
        assert found is not None, "it is called at a brace"
        num_braces = len(found[0])
        is_variants_end = self.text.startswith("-", found.end())
        while num_braces:
            index = self.nearest(_Kind.BRACES)
            variants = self.nearest(_Kind.VARIANTS) if is_variants_end else -1
            if variants > index:
                self.take(num_braces - 1)
                self.close_variants(variants)
                return
            if num_braces < 2 or index < 0:
                break
            num_braces -= self.close_braces(index, num_braces)
        self.take(num_braces)

    def close_braces(self, index: int, num_braces: int) -> int:
        """Closes a template or a template's argument; returns how many braces that took."""
        frame = self.frames[index]
        name = _skip_spaces(self.text, frame.source)
        if name >= self.at or self.text[name] == "[":  # no name of a page: shown as written
            del self.frames[index:]
            return 0
        closed = 3 if frame.num_braces > 2 and num_braces > 2 else 2
        call = "".join(self.pieces[frame.out + 1 :])
        frame.num_braces -= closed
        self.at += closed
        del self.pieces[frame.out :]
        self.emit("{" * frame.num_braces)
        if closed == 2:
            self.emit(show(call))
        del self.frames[index + (frame.num_braces > 1) :]
        return closed

    def close_variants(self, index: int) -> None:
        self.keep_piece(index, convert("".join(self.pieces[self.frames[index].out + 1 :])))
        self.at += 2

    def read_pipe(self) -> None:
        ends_table = self.text.startswith("}", self.at + 1)
        table = self.nearest(_Kind.TABLE) if ends_table else -1
        if self.is_in_title():
            frame = self.frames[-1]
            frame.title_end = self.at
            self.take(1)
            frame.text = len(self.pieces)
        elif table >= 0 and self.starts_line():
            self.drop_frame(table)
            self.at += 2
        else:
            self.take(1)

    def read_line_end(self) -> None:
        while self.is_in_title() or (self.frames and self.frames[-1].kind is _Kind.EXTERNAL):
            self.frames.pop()
        self.take(1)

    # Links and addresses

    def match_scheme(self, at: int) -> int | None:
        """Returns the position after "scheme:" and its slashes, or None without a scheme here."""
        found = _SCHEME.match(self.text, at)
        if not found or found[1].lower() not in SCHEMES:
            return None
        return None if SCHEMES[found[1].lower()] and not found[2] else found.end()

    def skip_address(self, at: int) -> int:
        is_in_call = self.nearest(_Kind.BRACES) >= 0
        pattern = _ADDRESS_END_IN_CALL if is_in_call else _ADDRESS_END
        if self.nearest(_Kind.VARIANTS) >= 0:
            pattern = _ADDRESS_END_IN_BOTH if is_in_call else _ADDRESS_END_IN_VARIANTS
        end = pattern.search(self.text, at)
        return end.start() if end else len(self.text)

    def read_colon(self) -> None:
        """Skips a web address in running text; the punctuation after the address is kept."""
        letters = _LETTERS_AT_END.search(
            self.text, max(self.run, self.at - _MAX_SCHEME - 1), self.at
        )
        start = letters.start() if letters else self.at
        is_word = self.is_in_title() or start == self.at or _is_within_word(self.text, start)
        name_end = None if is_word else self.match_scheme(start)
        end = None if name_end is None else self.skip_address(name_end)
        if name_end is None or end is None or end == name_end:
            self.take(1)
            return
        has_bracket = "(" in self.text[name_end:end]
        stops = ",.:;!?" if has_bracket else ",.:;!?)"
        while end > name_end + 1 and self.text[end - 1] in stops:
            end -= 1
        written = self.pieces.pop()
        self.emit(written[: len(written) - (self.at - start)])
        self.at = end

    def read_open_bracket(self) -> None:
        is_double = self.text.startswith("[", self.at + 1)
        if is_double and self.match_scheme(self.at + 2) is None:
            if self.is_in_title():
                self.frames.pop()
            self.open_frame(_Kind.LINK, 2)
            return
        if is_double:
            self.take(1)
        name = self.at + 1
        address = name + 2 if self.text.startswith("//", name) else self.match_scheme(name)
        end = None if address is None else self.skip_address(address)
        if end is None or end == address:
            self.take(1)
            return
        frame = self.open_frame(_Kind.EXTERNAL, 1)
        self.at = end
        if self.text.startswith(" ", self.at):
            self.take(1)
        if frame:
            frame.text = len(self.pieces)

    def read_close_bracket(self) -> None:
        external = self.nearest(_Kind.EXTERNAL)
        link = self.nearest(_Kind.LINK)
        is_double = self.text.startswith("]", self.at + 1)
        if external >= 0 and (external > link or not is_double):
            self.keep_piece(external, "".join(self.pieces[self.frames[external].text :]))
            self.at += 1
        elif is_double and link >= 0:
            self.close_link(link)
        else:
            self.take(1)

    def close_link(self, index: int) -> None:
        frame = self.frames[index]
        title_end = self.at if frame.title_end is None else frame.title_end
        title = self.text[frame.source : title_end]
        if not title:
            del self.frames[index:]
            self.take(2)
            return
        if ":" in title and self.is_hidden(title):
            self.drop_frame(index)
        else:
            start = frame.out + 1
            end = len(self.pieces)
            if frame.title_end is not None and self.at > frame.title_end + 1:
                start = frame.text
            elif frame.title_end is not None:
                end = frame.text - 1
            self.keep_piece(index, "".join(self.pieces[start:end]).lstrip(":"))
        self.at += 2

    # Tags, comments and entities

    def find_comment_end(self, at: int) -> int | None:
        """Returns the position after the comment that begins here, or None."""
        if "!--" in self.unclosed or not self.text.startswith("<!--", at):
            return None
        end = self.text.find("-->", at + 4)
        if end < 0:
            self.unclosed.add("!--")
            return None
        return end + 3

    def is_name(self, at: int, name: str) -> bool:
        end = at + len(name)
        word = self.text[at:end]
        if not word.isascii() or word.lower() != name or end >= len(self.text):
            return False
        return not (self.text[end].isascii() and self.text[end].isalnum())

    def find_close(self, at: int) -> int | None:
        """Returns the position of the next ">"; no text is searched for it twice."""
        if at > self.last_close:
            return None
        if not self.close_from <= at <= self.close:
            self.close_from = at
            self.close = self.text.find(">", at)
        return self.close

    def find_tag_end(self, at: int) -> int | None:
        """Returns the position of the tag's ">", or None.

        It is None if a "<" comes first that begins neither a comment nor a nowiki.
        """
        while True:
            close = self.find_close(at)
            if close is None:
                return None
            inner = self.text.find("<", at, close)
            if inner < 0:
                return close
            name = inner + 1 + self.text.startswith("/", inner + 1)
            comment_end = self.find_comment_end(inner)
            if self.is_name(name, "nowiki"):
                at = close + 1
            elif comment_end is not None:
                at = comment_end
            else:
                return None

    def match_closer(self, at: int, name: str) -> int | None:
        """Returns the position after the closing tag "</name>" at this "<", or None."""
        if not (self.text.startswith("/", at + 1) and self.is_name(at + 2, name)):
            return None
        end = _skip_spaces(self.text, at + 2 + len(name))
        return end + 1 if self.text.startswith(">", end) else None

    def find_reference_end(self) -> int | None:
        """Returns the end of a reference, or None if another one begins before it ends."""
        at = self.text.find("<", self.at)
        while at >= 0:
            end = self.match_closer(at, "ref")
            if end is not None:
                return end
            tag_end = self.find_tag_end(at + 1) if self.is_name(at + 1, "ref") else None
            if tag_end is not None and self.text[tag_end - 1] != "/":
                return None
            at = self.text.find("<", at + 1)
        return None

    def skip_raw(self, name: str, is_written: bool) -> None:
        """Skips to the end of a raw tag's closer. Without a closer, only the tag itself is skipped.

        Args:
            name: The name of the tag.
            is_written: Whether the text between the tags is written.
        """
        if name in self.unclosed:
            return
        at = self.text.find("<", self.at)
        while at >= 0 and self.match_closer(at, name) is None:
            at = self.text.find("<", at + 1)
        end = self.match_closer(at, name) if at >= 0 else None
        if end is None:
            self.unclosed.add(name)
            return
        while is_written and self.at < at:
            entity = self.text.find("&", self.at, at)
            self.take((entity if entity >= 0 else at) - self.at)
            if entity >= 0:
                self.read_entity()
        self.at = end

    def open_tag(self, name: str) -> None:
        """Handles an opening tag and continues after it."""
        kind = TAGS[name]
        if kind in (RAW_DROPPED, RAW_WRITTEN):
            self.skip_raw(name, kind == RAW_WRITTEN)
        elif kind == REFERENCE_TAG:
            end = self.find_reference_end()
            if end is None:
                self.open_frame(_Kind.REFERENCE, 0)
            else:
                self.at = end
        elif kind == TABLE_TAG:
            self.open_frame(_Kind.HTML_TABLE, 0)
        elif kind == LIST_ITEM:
            if self.frames and self.frames[-1].kind is _Kind.ITEM:
                self.frames.pop()
            if not "".join(self.pieces[-len(_ITEM_MARK) :]).endswith(_ITEM_MARK):
                self.emit(_ITEM_MARK)
            self.open_frame(_Kind.ITEM, 0)

    def close_tag(self, name: str) -> None:
        closed = {
            LIST_ITEM: _Kind.ITEM,
            TABLE_TAG: _Kind.HTML_TABLE,
            REFERENCE_TAG: _Kind.REFERENCE,
        }
        kind = closed.get(TAGS[name])
        index = self.nearest(kind) if kind else -1
        if index >= 0:
            self.drop_frame(index)

    def read_tag(self) -> None:
        comment_end = self.find_comment_end(self.at)
        if comment_end is not None:
            self.at = comment_end
            return
        closes = self.text.startswith("/", self.at + 1)
        word = _TAG_NAME.match(self.text, self.at + 1 + closes)
        assert word is not None, "it may be empty"
        name = word[0].lower()
        behind = self.text[word.end() : word.end() + 1]
        is_tag = name in TAGS and (_is_space(behind) or behind in (">", "/"))
        end = self.find_tag_end(word.end()) if is_tag else None
        if end is None:
            self.take(1)
            return
        self.at = end + 1
        if TAGS[name] == BREAK:
            self.emit(" ")
        elif closes:
            self.close_tag(name)
        elif self.text[end - 1] != "/":
            self.open_tag(name)

    def read_entity(self) -> None:
        found = _ENTITY.match(self.text, self.at)
        shown = _show_entity(found) if found else ""
        if found and shown:
            self.emit(shown)
            self.at = found.end()
        else:
            self.take(1)


def _skip_spaces(text: str, at: int) -> int:
    found = _SPACES.match(text, at)
    return found.end() if found else at


def _is_space(character: str) -> bool:
    return bool(character) and _skip_spaces(character, 0) == 1


def _is_within_word(text: str, at: int) -> bool:
    """Returns whether the character before `at` is part of a word.

    In ASCII these are letters, digits and "_"; elsewhere all characters but the punctuation of
    Latin, general, Chinese and full-width text.
    """
    if at == 0:
        return False
    before = text[at - 1]
    if before.isascii():
        return before.isalnum() or before == "_"
    marks = ("\u0080", "\u00bf"), ("\u2000", "\u203f"), ("\u3000", "\u303f"), ("\uff00", "\uff7f")
    return not any(first <= before <= last for first, last in marks)


def _show_entity(entity: re.Match[str]) -> str:
    """Returns the character of an entity, or an empty text if there is no such character."""
    hexadecimal, decimal, name = entity.groups()
    if name:
        return chr(ENTITIES[name]) if name in ENTITIES else ""
    digits = (hexadecimal or decimal).lstrip("0")
    code = int(digits or "0", 16 if hexadecimal else 10) if len(digits) < 9 else 0
    is_half = 0xD800 <= code < 0xE000  # of a surrogate pair
    return chr(code) if 0 < code <= _MAX_UNICODE and not is_half else ""
