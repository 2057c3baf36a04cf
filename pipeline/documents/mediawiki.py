"""MediaWiki XML dumps: every article is one document, its last revision.

A block of a multistream dump, which has pages and no root element, can be read as well.

A page belongs to the range that holds the start of its `<page>` tag; in bzip2, to the range that
holds the start of the compressed stream with this tag. Text escapes "<", so the tags are found
without parsing, and each page is then parsed by itself. A dump that declares entities is refused,
as no dump needs a DTD.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pipeline.documents import records
from pipeline.documents.files import FileRange, StorageOptions, read_blocks, read_stored
from pipeline.documents.lines import to_utf8
from pipeline.documents.records import BadDocumentError, Format, Record, too_long
from pipeline.storage.compression import (
    compression_suffix,
    find_bzip2_stream,
    is_compressed,
    read_frames,
    slices,
)
from pipeline.wiki import BadPageError
from pipeline.wiki.dump import Site, is_redirect, read_page, read_site, take_head
from pipeline.wiki.wikitext import parse_wikitext

_ROOT_TAG = re.compile(
    rb"(?:<\?.*?\?>\s*|<!--.*?-->\s*)*<(?:!DOCTYPE\s+)?mediawiki[\s>\[]", re.DOTALL
)
_ROOT_END = b"</mediawiki>"
_KEPT_BYTES = 64  # of what is no page: a tag may go on in the next block, blanks follow the last
_TAG = re.compile(rb"</?page>")
_HEAD_BYTES = 64 * 2**10  # read of every range's file for its siteinfo, which takes some 3 kB
_OPEN, _CLOSE = b"<page>", b"</page>"
_DECLARATION = re.compile(rb"<!(DOCTYPE|ENTITY)")
_PAGES_WITHOUT_ROOT = re.compile(rb"<page>\s*<title>")


Blocks = Iterable[tuple[bytes, bool]]


def read_pages(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[Record]:
    """A record of wikitext a page; redirects and pages that are no articles are only counted."""
    site = _read_site(file_range, storage_options)
    is_last = file_range.end == file_range.size
    text = _read_range(file_range, storage_options)
    for offset, data, error in split_pages(text, file_range.url, is_last, site.has_root):
        place = f"page at byte {offset} of the text from byte {file_range.start} on"
        bad = Record(1, offset, b"", error, place)
        yield bad if error else _make_record(data, offset, place, site)


def _read_site(file_range: FileRange, storage_options: StorageOptions) -> Site:
    """Reads the site's facts from the file's first bytes, wherever the range begins."""
    url, size = file_range.url, file_range.size
    head = FileRange(url, 0, min(size, _HEAD_BYTES), size, file_range.format)
    return read_site(take_head(to_utf8(read_blocks(head, storage_options), url)))


def _read_range(file_range: FileRange, storage_options: StorageOptions) -> Blocks:
    """UTF-8 from the start of a range on, and whether what starts in it belongs to the range."""
    blocks = _read_stored_range(file_range, storage_options)
    if file_range.start or file_range.end < file_range.size:
        return blocks
    return ((text, True) for text in to_utf8((block for block, _ in blocks), file_range.url))


def _read_stored_range(file_range: FileRange, storage_options: StorageOptions) -> Blocks:
    if compression_suffix(file_range.url) == ".bz2":
        yield from _read_streams(file_range, storage_options)
        return
    offset = file_range.start
    for block in _without_first(read_blocks(file_range, storage_options), file_range.start):
        num_ours = len(block) if is_compressed(file_range.url) else max(0, file_range.end - offset)
        yield block[:num_ours], True
        if num_ours < len(block):
            yield block[num_ours:], False
        offset += len(block)


def _read_streams(file_range: FileRange, storage_options: StorageOptions) -> Blocks:
    """Text from the first bzip2 stream of a range, and whether its stream starts in the range."""
    stored = _without_first(read_stored(file_range, storage_options), file_range.start)
    first = file_range.start
    if file_range.start:
        num_before, stored = find_bzip2_stream(stored, file_range.num_bytes)
        first += num_before
    for text, begin in read_frames(file_range.counted(slices(stored)), file_range.url):
        yield text, first + begin < file_range.end


def _without_first(blocks: Iterator[bytes], start: int) -> Iterator[bytes]:
    """Drops the first byte: ranges are read from one byte before their start."""
    if start > 0:
        yield next(blocks, b"")[1:]
    yield from blocks


def split_pages(
    blocks: Blocks, url: str, is_last: bool, has_root: bool = True
) -> Iterator[tuple[int, bytes, BadDocumentError | None]]:
    """Yields offset, bytes and error of every page that starts in the range.

    Args:
        blocks: Pieces of UTF-8, each with whether pages that start in it belong to the range.
        url: The file, for messages.
        is_last: Whether the range ends with the file.
        has_root: Whether the file begins with the root element of a dump, so that it must end with
            the closing tag.

    Raises:
        ValueError: The file is cut short, or declares entities.
    """
    data, base, scan = bytearray(), 0, 0
    limit: int | None = None
    is_inside = is_too_long = False
    for block, is_ours in blocks:
        if not is_ours and limit is None:
            limit = base + len(data)
        data += block
        while tag := _TAG.search(data, scan):
            at, found = tag.start(), tag[0]
            del tag  # it locks the buffer
            if is_inside:
                end = at + len(_CLOSE) if found == _CLOSE else at
                is_too_long = is_too_long or end > records.MAX_DOCUMENT_BYTES
                yield base, bytes(data[:end]), _page_error(found == _CLOSE, is_too_long)
            else:
                _refuse_declarations(data[:at], url)
                end = at
            is_behind = limit is not None and base + at >= limit
            is_inside, is_too_long = found == _OPEN and not is_behind, False
            if found == _OPEN and not is_inside:
                return
            scan = len(_OPEN) if found == _OPEN else 0
            end = end if found == _OPEN else at + len(_CLOSE)
            del data[:end]
            base += end
        if not is_inside:
            _refuse_declarations(data, url)
            if limit is not None and base + len(data) - len(_CLOSE) * (b"<" in data) >= limit:
                break
        is_too_long = is_too_long or (is_inside and len(data) > records.MAX_DOCUMENT_BYTES)
        if not is_inside or is_too_long:
            num_dropped = max(0, len(data) - _KEPT_BYTES)
            del data[:num_dropped]
            base += num_dropped
            scan = 0 if not (is_inside and num_dropped == 0) else scan
        else:
            scan = max(scan, len(data) - len(_CLOSE))
    rest = _Rest(bytes(data), base, is_inside)
    _refuse_cut(rest, url, is_last, has_root)
    if is_inside:
        yield base, bytes(data), _page_error(False, is_too_long)


def _page_error(is_closed: bool, is_too_long: bool) -> BadDocumentError | None:
    if not is_closed:
        message = "found <page> without its </page> before the next one or the file's end"
        return BadDocumentError("unclosed_page", message)
    return too_long() if is_too_long else None


class _Rest(NamedTuple):
    """The text of a range after its last whole page."""

    data: bytes
    num_before: int
    """Bytes of the range before it."""
    is_in_page: bool

    def may_be(self, end: bytes) -> bool:
        """Returns whether the text is the closing tag `end`.

        A range may begin within the tag; the rest of the tag is enough then.
        """
        return self.data.strip() == end or (
            self.num_before == 0 and end.endswith(self.data.rstrip())
        )


def _refuse_cut(rest: _Rest, url: str, is_last: bool, has_root: bool) -> None:
    """Refuses a file whose last range does not end as a file should.

    A dump ends with its root's closing tag. A block of pages has none, except for a dump's last
    block.

    Raises:
        ValueError: The file ends otherwise.
    """
    if not is_last:
        return
    if has_root:
        # There is no text where no stream of bzip2 starts in the last range.
        if _ROOT_END not in rest.data and not rest.may_be(_ROOT_END):
            found = f"the dump ends without {_ROOT_END.decode()}, so a part of it is missing"
            raise ValueError(f"{url}: {found}; fetch the file again")
    elif rest.is_in_page:
        raise ValueError(f"{url}: the file ends within a page; fetch it again")
    elif rest.data.strip() and not (rest.may_be(_ROOT_END) or rest.may_be(_CLOSE)):
        found = f"found {rest.data.strip()[:40]!r} outside of a page"
        raise ValueError(f"{url}: {found}, expected a MediaWiki dump, or whole pages of one")


def _refuse_declarations(data: bytes | bytearray, url: str) -> None:
    if found := _DECLARATION.search(data):
        expected = "expected a MediaWiki dump, which declares no entities"
        raise ValueError(f"{url}: found {bytes(found[0]).decode()}, {expected}")


def _make_record(data: bytes, offset: int, place: str, site: Site) -> Record:
    try:
        page = read_page(data)
    except BadPageError as error:
        return Record(1, offset, b"", BadDocumentError(error.reason, str(error)), place)
    dropped = ""
    if not site.is_article(page) or page.model != "wikitext":
        dropped = "not_an_article"
    elif is_redirect(page):
        dropped = "redirect"
    place = f"page {page.id} {page.title!r}"
    hidden = site.hidden_prefixes
    return Record(1, offset, page.text.encode(), None, place, dropped, hidden_prefixes=hidden)


MEDIAWIKI = Format(
    lambda text, record, *_: parse_wikitext(text, record.hidden_prefixes),
    lambda beginning: (
        bool(_ROOT_TAG.match(beginning.text)) or bool(_PAGES_WITHOUT_ROOT.match(beginning.text))
    ),
    read=lambda file_range, _, storage_options: read_pages(file_range, storage_options),
    cut_suffix=".bz2",
)
