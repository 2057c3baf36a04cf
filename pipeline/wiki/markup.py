r"""Renders the wikitext of a page as the text that the page shows. This file is the definition.

`_wikitext.c` does the same faster. It has a function for each function of this file, by the same
name.

The page is read once, from left to right. The text that it shows is written to a list of strings,
the pieces. When a link, a template, a table or a reference is opened, its opener ("[[", "{{", ...)
is written like text, and a frame that remembers the opener is put on a stack. When the markup is
closed, its frame is taken from the stack, and everything that was written from the opener on is
replaced: by nothing (tables, references, links to files), by the label or title of a link, or by
the text that a template shows. So an opener that is never closed stays as text, and no markup is
read twice. If `_MAX_DEPTH` frames are open, further openers are only text.

Lists, headings and all other markup of whole lines are left to wikitext.py. For an item of an HTML
list a line with the mark "\0" is written, which ends the paragraph before it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from html.entities import name2codepoint

from pipeline.wiki.inline_templates import show
from pipeline.wiki.variants import convert

ENTITIES = name2codepoint | {"apos": ord("'")}
"""The code point of every character that has a name in HTML, such as "amp", by the name."""
LIST_MARK = "\0"
"""A line of this mark is written for every item of an HTML list."""
_ITEM_MARK = f"\n{LIST_MARK}\n"
_MAX_DEPTH = 100
_MAX_SCHEME = 9  # characters
_MAX_UNICODE = 0x10FFFF
_MAX_DIGITS = 8  # in an entity such as "&#8211;"; a longer number is beyond Unicode

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
# What a tag does with the text that it holds:
VANISH = 0  # The text is written, without the tag.
BREAK = 1  # The tag is a space, and holds no text.
LIST_ITEM = 2  # LIST_MARK is written. The text is removed if the item has a closing tag.
TABLE_TAG = 3  # The text is removed.
REFERENCE_TAG = 4  # The text is removed.
RAW_DROPPED = 5  # The text is no wikitext, and is removed.
RAW_WRITTEN = 6  # The text is no wikitext, and is written.
TAGS = dict.fromkeys(_KNOWN.split(), VANISH)
TAGS |= {"br": BREAK, "table": TABLE_TAG, "ref": REFERENCE_TAG}
TAGS |= dict.fromkeys(("li", "dd", "dt"), LIST_ITEM)
TAGS |= dict.fromkeys(_DROPPED.split(), RAW_DROPPED) | dict.fromkeys(_WRITTEN.split(), RAW_WRITTEN)
"""What each tag does, by its name. A raw tag ends at the first closing tag of the same name."""

_PLAIN = "bitcoin geo magnet mailto news sip sips sms tel urn xmpp"
_SLASHED = "ftp ftps git gopher http https irc ircs mms nntp redis sftp ssh svn telnet worldwind"
SCHEMES = dict.fromkeys(_PLAIN.split(), False) | dict.fromkeys(_SLASHED.split(), True)
"""The schemes of web addresses, and whether two slashes must follow each."""

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
    """A kind of markup that is opened and closed."""

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
    """Markup that was opened and is not closed yet.

    Attributes:
        kind: The kind of markup.
        opener: Index in `_Reader.pieces` of the opener. For a tag, whose opener writes nothing, it
            is the index of the first piece after the tag.
        content: Position in the wikitext of the first character after the opener.
        num_braces: For BRACES, the number of opening braces that are not closed yet.
        label: For LINK and EXTERNAL, the index in `_Reader.pieces` of the first piece of the label,
            which follows the first pipe of a link, or the address of an external link.
        title_end: For LINK, the position in the wikitext of the first pipe; None until that pipe
            has been read.
    """

    kind: _Kind
    opener: int
    content: int
    num_braces: int = 0
    label: int = 0
    title_end: int | None = None


def render(text: str, is_hidden: Callable[[str], bool]) -> str:
    """Returns the text that a page shows, with the markup of whole lines still in it.

    Args:
        text: The wikitext.
        is_hidden: Takes the title of a link, such as "File:Map.png", and returns whether the link
            is left out of the text. It is called only for titles with a colon.
    """
    return _Reader(text, is_hidden).read()


class _Reader:
    """Reads one page. A method that begins with `read_` reads the markup at the position `at`.

    Attributes:
        text: The wikitext.
        is_hidden: Takes the title of a link, and returns whether the link is left out.
        at: Position in the wikitext of the next character to read.
        plain_start: Position in the wikitext where the plain text before the current markup begins.
            Its characters, up to the markup, were written unchanged.
        pieces: The text that was written so far, as a list of strings, none of them empty.
        frames: The stack of open frames, the innermost last.
        unclosed: Names of raw tags for which the rest of the page has no closing tag, and "!--" if
            it has no end of a comment. A closing tag that was not found is not searched for again.
        last_close: Position of the last ">" of the page; -1 if there is none.
        close: Position of the ">" that `find_close` found last; -1 before its first search.
        close_from: Position where that search began; -1 before the first. From every position
            between `close_from` and `close`, the next ">" is the one at `close`.
    """

    def __init__(self, text: str, is_hidden: Callable[[str], bool]) -> None:
        self.text = text
        self.is_hidden = is_hidden
        self.at = 0
        self.plain_start = 0
        self.pieces: list[str] = []
        self.frames: list[_Frame] = []
        self.unclosed: set[str] = set()
        self.last_close = text.rfind(">")
        self.close = -1
        self.close_from = -1

    def read(self) -> str:
        """Reads the page to its end, and returns the text that was written."""
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
            self.plain_start = self.at
            special = _SPECIAL.search(self.text, self.at)
            self.take((special.start() if special else len(self.text)) - self.at)
            if special:
                actions[special[0]]()
        return "".join(self.pieces)

    # Writing, and frames

    def emit(self, text: str) -> None:
        """Appends a text to what was written, if it is not empty."""
        if text:
            self.pieces.append(text)

    def take(self, num_characters: int) -> None:
        """Writes the next characters of the wikitext unchanged, and continues after them."""
        self.emit(self.text[self.at : self.at + num_characters])
        self.at += num_characters

    def is_in_title(self) -> bool:
        """Returns whether the innermost frame is a link whose title has not ended."""
        frame = self.frames[-1] if self.frames else None
        return bool(frame and frame.kind is _Kind.LINK and frame.title_end is None)

    def nearest(self, kind: _Kind) -> int:
        """Returns the index in `frames` of the innermost frame of a kind that may be closed here.

        The result is -1 if there is no such frame. Markup that was opened outside of braces or of a
        table ("{|") cannot be closed inside of them, with two exceptions: a reference can be closed
        inside of both, and braces can be closed inside of a table.
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
        """Writes the opener at `at` as text, and opens a frame for it.

        Args:
            kind: The kind of markup that the opener begins.
            num_characters: The length of the opener; 0 for a tag, which was already skipped.

        Returns:
            The frame. If `_MAX_DEPTH` frames are open, there is none, and the result is None.
        """
        frame = None
        if len(self.frames) < _MAX_DEPTH:
            frame = _Frame(kind, len(self.pieces), self.at + num_characters)
            self.frames.append(frame)
        self.take(num_characters)
        return frame

    def drop_frame(self, index: int) -> None:
        """Closes a frame, and removes its opener and all that was written after the opener.

        Frames inside it, which were never closed, are removed as well.

        Args:
            index: The index of the frame in `frames`.
        """
        del self.pieces[self.frames[index].opener :]
        del self.frames[index:]

    def keep_piece(self, index: int, kept: str) -> None:
        """Closes a frame, and replaces its opener and all that was written after it by a text.

        Args:
            index: The index of the frame in `frames`.
            kept: The text.
        """
        self.drop_frame(index)
        self.emit(kept)

    def starts_line(self) -> bool:
        """Returns whether only spaces, tabs and colons are before `at` on its line."""
        start = self.at
        while start > 0 and self.text[start - 1] in " \t:":
            start -= 1
        return start == 0 or self.text[start - 1] == "\n"

    # Braces, pipes and lines

    def read_open_braces(self) -> None:
        """Reads a sequence of opening braces: opens variants ("-{"), templates and a table ("{|").

        Braces that open none of these are written as text.
        """
        braces = _OPEN_BRACES.match(self.text, self.at)
        assert braces is not None, "it is called at a brace"
        num_braces = len(braces[0])
        is_after_dash = self.at > self.plain_start and self.text.startswith("-", self.at - 1)
        if num_braces % 2 and is_after_dash:
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
        """Opens a frame of variants at the brace of "-{", whose "-" was already written as text."""
        before = self.pieces.pop()[:-1]
        self.emit(before)
        self.at -= 1
        self.open_frame(_Kind.VARIANTS, 2)

    def read_close_braces(self) -> None:
        """Reads a sequence of closing braces, and closes templates and arguments with them.

        If "-" follows the sequence, its last brace closes variants ("}-"), provided that they were
        opened after the innermost open braces. Braces that close nothing are written as text.
        """
        braces = _CLOSE_BRACES.match(self.text, self.at)
        assert braces is not None, "it is called at a brace"
        num_braces = len(braces[0])
        is_variants_end = self.text.startswith("-", braces.end())
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
        """Closes a template ("}}") or an argument of a template ("}}}").

        The call of a template is replaced by the text that the template shows, and an argument by
        nothing. If two or more of the frame's opening braces are left, it stays open for them.

        Args:
            index: Index in `frames` of the frame of braces.
            num_braces: Number of closing braces at `at`.

        Returns:
            The number of closing braces that were used, 2 or 3. It is 0 if the braces hold no name
            of a template, because they are empty or begin with "[". The frame is then removed, so
            that its braces stay as text.
        """
        frame = self.frames[index]
        name = _skip_spaces(self.text, frame.content)
        if name >= self.at or self.text[name] == "[":
            del self.frames[index:]
            return 0

        num_closed = 3 if frame.num_braces > 2 and num_braces > 2 else 2
        call = "".join(self.pieces[frame.opener + 1 :])
        frame.num_braces -= num_closed
        self.at += num_closed
        del self.pieces[frame.opener :]
        self.emit("{" * frame.num_braces)
        if num_closed == 2:
            self.emit(show(call))
        # The frame stays open if enough of its braces are left for another template.
        del self.frames[index + (frame.num_braces > 1) :]
        return num_closed

    def close_variants(self, index: int) -> None:
        """Closes variants at "}-", and replaces them by the one variant that is shown."""
        self.keep_piece(index, convert("".join(self.pieces[self.frames[index].opener + 1 :])))
        self.at += 2

    def read_pipe(self) -> None:
        """Reads a pipe: ends the title of a link, or closes a table ("|}" at the start of a line).

        A pipe that does neither is written as text.
        """
        ends_table = self.text.startswith("}", self.at + 1)
        table = self.nearest(_Kind.TABLE) if ends_table else -1
        if self.is_in_title():
            frame = self.frames[-1]
            frame.title_end = self.at
            self.take(1)
            frame.label = len(self.pieces)
        elif table >= 0 and self.starts_line():
            self.drop_frame(table)
            self.at += 2
        else:
            self.take(1)

    def read_line_end(self) -> None:
        """Writes a line end as text, and gives up markup that cannot continue on the next line.

        Such markup is an external link, and a link whose title has not ended. If it is innermost,
        its frame is removed, so that its opener stays as text.
        """
        while self.is_in_title() or (self.frames and self.frames[-1].kind is _Kind.EXTERNAL):
            self.frames.pop()
        self.take(1)

    # Links and addresses

    def match_scheme(self, at: int) -> int | None:
        """Returns the position after the scheme, such as "https://", that begins at `at`.

        The result is None if no known scheme begins there.
        """
        scheme = _SCHEME.match(self.text, at)
        if not scheme or scheme[1].lower() not in SCHEMES:
            return None
        needs_slashes = SCHEMES[scheme[1].lower()]
        return None if needs_slashes and not scheme[2] else scheme.end()

    def skip_address(self, at: int) -> int:
        """Returns the position after the web address whose scheme ends at `at`."""
        is_in_call = self.nearest(_Kind.BRACES) >= 0
        pattern = _ADDRESS_END_IN_CALL if is_in_call else _ADDRESS_END
        if self.nearest(_Kind.VARIANTS) >= 0:
            pattern = _ADDRESS_END_IN_BOTH if is_in_call else _ADDRESS_END_IN_VARIANTS
        end = pattern.search(self.text, at)
        return end.start() if end else len(self.text)

    def read_colon(self) -> None:
        """Removes a web address from running text, if the colon at `at` is that of a scheme.

        The scheme before the colon, which was already written, is removed as well. Punctuation
        after the address stays. A colon that is no scheme's is written as text.
        """
        letters = _LETTERS_AT_END.search(
            self.text, max(self.plain_start, self.at - _MAX_SCHEME - 1), self.at
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
        # The scheme was already written, at the end of the last piece.
        written = self.pieces.pop()
        self.emit(written[: len(written) - (self.at - start)])
        self.at = end

    def read_open_bracket(self) -> None:
        """Opens a link ("[[") or an external link ("[" and an address), or writes the bracket."""
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
            frame.label = len(self.pieces)

    def read_close_bracket(self) -> None:
        """Closes an external link at "]", or a link at "]]".

        At "]]" the innermost of the two is closed. A bracket that closes nothing is written as
        text.
        """
        external = self.nearest(_Kind.EXTERNAL)
        link = self.nearest(_Kind.LINK)
        is_double = self.text.startswith("]", self.at + 1)
        if external >= 0 and (external > link or not is_double):
            self.keep_piece(external, "".join(self.pieces[self.frames[external].label :]))
            self.at += 1
        elif is_double and link >= 0:
            self.close_link(link)
        else:
            self.take(1)

    def close_link(self, index: int) -> None:
        """Closes a link at "]]", and replaces it by its label.

        A link without a label is replaced by its title, and a link that `is_hidden` is removed. A
        link with an empty title stays as text.

        Args:
            index: Index in `frames` of the link's frame.
        """
        frame = self.frames[index]
        title_end = self.at if frame.title_end is None else frame.title_end
        title = self.text[frame.content : title_end]
        if not title:
            del self.frames[index:]
            self.take(2)
            return
        if ":" in title and self.is_hidden(title):
            self.drop_frame(index)
        else:
            start = frame.opener + 1
            end = len(self.pieces)
            if frame.title_end is not None and self.at > frame.title_end + 1:
                start = frame.label
            elif frame.title_end is not None:
                end = frame.label - 1  # the label is empty: the title, without the pipe
            self.keep_piece(index, "".join(self.pieces[start:end]).lstrip(":"))
        self.at += 2

    # Tags, comments and entities

    def find_comment_end(self, at: int) -> int | None:
        """Returns the position after the comment that begins at `at`.

        The result is None if no comment begins there, or if the comment is never closed.
        """
        if "!--" in self.unclosed or not self.text.startswith("<!--", at):
            return None
        end = self.text.find("-->", at + 4)
        if end < 0:
            self.unclosed.add("!--")
            return None
        return end + 3

    def is_name(self, at: int, name: str) -> bool:
        """Returns whether the whole word at `at` is this name, in upper or lower case."""
        end = at + len(name)
        word = self.text[at:end]
        if not word.isascii() or word.lower() != name or end >= len(self.text):
            return False
        return not (self.text[end].isascii() and self.text[end].isalnum())

    def find_close(self, at: int) -> int | None:
        """Returns the position of the first ">" at `at` or after it, or None.

        The last result is remembered, so a part of the text is not searched again and again.
        """
        if at > self.last_close:
            return None
        if not self.close_from <= at <= self.close:
            self.close_from = at
            self.close = self.text.find(">", at)
        return self.close

    def find_tag_end(self, at: int) -> int | None:
        """Returns the position of the ">" that ends a tag, or None if the text is no tag.

        Between its name and its ">", a tag may hold comments and nowiki tags. If there is another
        "<", or if no ">" follows, the text is no tag.

        Args:
            at: Position after the name of the tag.
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
        """Returns the position after a closing tag of this name that begins at `at`, or None."""
        if not (self.text.startswith("/", at + 1) and self.is_name(at + 2, name)):
            return None
        end = _skip_spaces(self.text, at + 2 + len(name))
        return end + 1 if self.text.startswith(">", end) else None

    def find_reference_end(self) -> int | None:
        """Returns the position after the next `</ref>`, for a reference that begins at `at`.

        The result is None if there is no `</ref>`, or if another `<ref>` is opened before it.
        """
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
        """Reads the text of a raw tag, and moves `at` after the closing tag.

        If the page has no such closing tag, nothing is read.

        Args:
            name: The name of the tag.
            is_written: Whether the text between the tags is written. Entities in it are replaced,
                but no other markup is read.
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
        """Does what an opening tag requires, when `at` is after the tag.

        A frame is opened for a table, and for an item of a list after `LIST_MARK` was written. The
        text of a reference is skipped; if it holds another reference, or is not closed, a frame is
        opened for it. The text of a raw tag is skipped or written. Other tags do nothing, so that
        the text in them is shown.

        Args:
            name: The name of the tag, a key of `TAGS`.
        """
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
        """Closes the list item, table or reference that a closing tag ends, and drops its text.

        It does nothing if no element of this kind is open. It also does nothing for the other tags
        of `TAGS`, such as `</b>`.

        Args:
            name: The name of the closing tag, a key of `TAGS`, such as "li", "table" or "ref".
        """
        kinds = {
            LIST_ITEM: _Kind.ITEM,
            TABLE_TAG: _Kind.HTML_TABLE,
            REFERENCE_TAG: _Kind.REFERENCE,
        }
        kind = kinds.get(TAGS[name])
        index = self.nearest(kind) if kind else -1
        if index >= 0:
            self.drop_frame(index)

    def read_tag(self) -> None:
        """Reads a comment or a known tag, or writes the "<" as text."""
        comment_end = self.find_comment_end(self.at)
        if comment_end is not None:
            self.at = comment_end
            return
        closes = self.text.startswith("/", self.at + 1)
        word = _TAG_NAME.match(self.text, self.at + 1 + closes)
        assert word is not None, "it may be empty"
        name = word[0].lower()
        next_character = self.text[word.end() : word.end() + 1]
        ends_word = _is_space(next_character) or next_character in (">", "/")
        is_tag = name in TAGS and ends_word
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
        """Writes the character that an entity such as "&amp;" stands for, or the "&" as text."""
        entity = _ENTITY.match(self.text, self.at)
        character = _show_entity(entity) if entity else ""
        if entity and character:
            self.emit(character)
            self.at = entity.end()
        else:
            self.take(1)


def _skip_spaces(text: str, at: int) -> int:
    """Returns the position of the first character at `at` or after it that is no white space."""
    spaces = _SPACES.match(text, at)
    return spaces.end() if spaces else at


def _is_space(character: str) -> bool:
    """Returns whether a string of at most one character is white space; False if it is empty."""
    return bool(character) and _skip_spaces(character, 0) == 1


def _is_within_word(text: str, at: int) -> bool:
    """Returns whether the character before `at` is part of a word.

    In ASCII, words consist of letters, digits and "_". Beyond ASCII, every character is part of a
    word unless it is in a block of Latin, general, Chinese or full-width punctuation.
    """
    if at == 0:
        return False
    before = text[at - 1]
    if before.isascii():
        return before.isalnum() or before == "_"
    punctuation = (
        ("\u0080", "\u00bf"),
        ("\u2000", "\u203f"),
        ("\u3000", "\u303f"),
        ("\uff00", "\uff7f"),
    )
    return not any(first <= before <= last for first, last in punctuation)


def _show_entity(entity: re.Match[str]) -> str:
    """Returns the character of an entity, or an empty text if there is no such character."""
    hexadecimal, decimal, name = entity.groups()
    if name:
        return chr(ENTITIES[name]) if name in ENTITIES else ""

    digits = (hexadecimal or decimal).lstrip("0")
    if not digits or len(digits) > _MAX_DIGITS:
        return ""
    code = int(digits, 16 if hexadecimal else 10)
    is_half = 0xD800 <= code < 0xE000  # of a surrogate pair
    return "" if is_half or code > _MAX_UNICODE else chr(code)
