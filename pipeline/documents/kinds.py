"""Refuses files from which no text can be read, such as PDF, by their names and first bytes.

The message says how to make text of the file. A new kind is one line of `KINDS`.
`pipeline.documents.detect` looks into this table before it tries the formats that can be read.
"""

import codecs
import re
import struct
from typing import NamedTuple

from pipeline.storage.compression import compression_suffix, plain_suffix
from pipeline.storage.tar_archive import looks_like_tar
from pipeline.storage.tensorflow_bytes import masked_crc32c


class Kind(NamedTuple):
    """A kind of file that cannot be read, how to recognize it, and what to do with it.

    Attributes:
        name: The kind with its article, for messages: "a PDF document".
        cure: What the user can do, such as a command that makes text of the file. FILE stands for
            the name of the file.
        suffixes: Extensions of such files in lower case, with spaces between them.
        magic: Sequences of bytes. A file that has one of them at `offset` is of this kind.
        offset: Offset of the magic bytes in the file.
        is_binary: Whether no file of this kind looks like text. If so, a file that looks like text
            is not of this kind, whatever its extension. If not, a file of this kind may look like
            text, and the user may have it read as plain text.
    """

    name: str
    cure: str
    suffixes: str = ""
    magic: tuple[bytes, ...] = ()
    offset: int = 0
    is_binary: bool = True


_IMAGE = "leave it out, or recognize its text: `tesseract FILE OUT`"
_MEDIA = "leave it out, or transcribe it: `whisper FILE --output_format txt`"
_PROGRAM = "leave it out"
_UNPACK = "unpack it"
_PANDOC = "make text of it: `pandoc FILE -t plain --wrap=none -o OUT.txt`"
_OFFICE = "make text of it: `libreoffice --headless --convert-to txt:Text FILE`"
_SHEET = "make CSV of it: `libreoffice --headless --convert-to csv FILE`"
_EBOOK = "make text of it: `ebook-convert FILE OUT.txt`"
_PYTHON = "write its texts as JSON lines with the Python that wrote it"
_SUBTITLES = "take the times out: `ffmpeg -i FILE OUT.ass` or a subtitle tool, then keep the lines"
_MAIL = "write its messages as JSON lines, with Python's mailbox and email modules"

KINDS = (
    Kind("a PDF document", "make text of it: `pdftotext FILE OUT.txt`", ".pdf",
         (b"%PDF-1.", b"%PDF-2."),
         is_binary=False),
    Kind("PostScript", "make text of it: `ps2ascii FILE OUT.txt`", ".ps .eps",
         (b"%!PS-Adobe", b"%!PS\n", b"%!PS\r"),
         is_binary=False),
    Kind("DjVu", "make text of it: `djvutxt FILE OUT.txt`", ".djvu .djv", (b"AT&TFORM",)),
    Kind("RTF", _PANDOC, ".rtf", (b"{\\rtf1",), is_binary=False),
    Kind("a Word document", _PANDOC, ".docx"),
    Kind("an OpenDocument text", _PANDOC, ".odt"),
    Kind("a Word document of before 2007", _OFFICE, ".doc .dot"),
    Kind("an Excel sheet", _SHEET, ".xlsx .xlsm .xlsb .xls"),
    Kind("an OpenDocument sheet", _SHEET, ".ods"),
    Kind("slides", "make PDF of it: `libreoffice --headless --convert-to pdf FILE`, then text by"
         " pdftotext", ".pptx .ppt .odp"),
    Kind("an Office file of before 2007", f"{_OFFICE}, or csv for a sheet", "",
         (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",)),
    Kind("an EPUB book", _PANDOC, ".epub"),
    Kind("a Kindle book", _EBOOK, ".mobi .azw .azw3 .prc", (b"BOOKMOBI",), 60),
    Kind("a FictionBook", _PANDOC, ".fb2", is_binary=False),
    Kind("a notebook", "make text of it: `jupyter nbconvert --to markdown FILE`", ".ipynb",
         is_binary=False),
    Kind("subtitles", _SUBTITLES, ".srt .vtt .ass .ssa", (b"WEBVTT\n", b"WEBVTT\r"),
         is_binary=False),
    Kind("mail", _MAIL, ".mbox .eml .mht .mhtml", is_binary=False),
    Kind("7z data", f"{_UNPACK}: `7z x FILE`", ".7z", (b"7z\xbc\xaf\x27\x1c",)),
    Kind("a RAR archive", f"{_UNPACK}: `unrar x FILE`", ".rar", (b"Rar!\x1a\x07",)),
    Kind("a cabinet archive", f"{_UNPACK}: `cabextract FILE`", ".cab", (b"MSCF\0",)),
    Kind("a cpio archive", f"{_UNPACK}: `cpio -i < FILE`", ".cpio", (b"070701", b"\xc7\x71")),
    Kind("an ar archive", f"{_UNPACK}: `ar x FILE`", ".a .deb", (b"!<arch>\n",)),
    Kind("lz4 data", "decompress it: `lz4 -d FILE`", ".lz4",
         (b"\x04\x22\x4d\x18", b"\x02\x21\x4c\x18")),
    Kind("data of Unix compress", "decompress it: `gzip -d FILE`", ".z", (b"\x1f\x9d",)),
    Kind("lzip data", "decompress it: `lzip -d FILE`", ".lz", (b"LZIP",)),
    Kind("lzop data", "decompress it: `lzop -d FILE`", ".lzo", (b"\x89LZO\0\r\n\x1a\n",)),
    Kind("Snappy data", "decompress it: `snzip -d FILE`", ".sz .snappy",
         (b"\xff\x06\0\0sNaPpY",)),
    Kind("Brotli data", "decompress it: `brotli -d FILE`", ".br"),
    Kind("TFRecord", f"{_PYTHON}: tf.data.TFRecordDataset reads it", ".tfrecord .tfrecords"),
    Kind("a NumPy array", f"{_PYTHON}; arrays of token ids are no input", ".npy .npz",
         (b"\x93NUMPY",)),
    Kind("a pickle", _PYTHON, ".pkl .pickle", (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")),
    Kind("a PyTorch file", _PYTHON, ".pt .pth"),
    Kind("a model's weights", "leave it out", ".safetensors .gguf", (b"GGUF",)),
    Kind("HDF5", f"{_PYTHON}: h5py reads it", ".h5 .hdf5", (b"\x89HDF\r\n\x1a\n",)),
    Kind("an SQLite database", "write its texts as CSV: `sqlite3 -csv -header FILE 'SELECT ...'`",
         ".sqlite .sqlite3 .db", (b"SQLite format 3\0",)),
    Kind("Avro", f"{_PYTHON}, or as Parquet", ".avro", (b"Obj\x01",)),
    Kind("ORC", "write it as Parquet: pyarrow.orc.read_table reads it", ".orc"),
    Kind("Feather of its first version", "write it as Parquet: pyarrow.feather reads it", "",
         (b"FEA1",)),
    Kind("a database of LMDB", f"{_PYTHON}: lmdb reads it", ".mdb .lmdb",
         (b"\xde\xc0\xef\xbe",), 16),
    Kind("a table of Stata, SAS, SPSS or R", "write it as CSV with the program that wrote it",
         ".dta .sas7bdat .sav .rdata .rds", (b"RDX2\n", b"RDX3\n", b"$FL2")),
    Kind("an image", _IMAGE, ".png .jpg .jpeg .gif .tif .tiff .bmp .webp .heic .ico .psd .jp2",
         (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*",
          b"8BPS", b"\0\0\0\x0cjP  ")),
    Kind("an image", _IMAGE, "", (b"WEBP",), 8),
    Kind("a drawing", "leave it out", ".svg", is_binary=False),
    Kind("sound or video", _MEDIA,
         ".mp3 .wav .flac .ogg .opus .m4a .mp4 .mkv .webm .avi .mov .mpg .mpeg .wma",
         (b"ID3\x02", b"ID3\x03", b"ID3\x04", b"OggS", b"fLaC", b"\x1aE\xdf\xa3", b"\xff\xfb",
          b"\xff\xf3", b"\0\0\x01\xba", b"\0\0\x01\xb3")),
    Kind("sound or video", _MEDIA, "", (b"ftyp",), 4),
    Kind("sound or video", _MEDIA, "", (b"WAVE", b"AVI "), 8),
    Kind("a program", _PROGRAM, ".exe .dll .so .o .class .pyc .jar .wasm",
         (b"\x7fELF", b"\xca\xfe\xba\xbe", b"\xcf\xfa\xed\xfe", b"\0asm")),
    Kind("a program", _PROGRAM, "", (b"This program cannot be run in DOS mode",), 78),
    Kind("a font", "leave it out", ".ttf .otf .woff .woff2",
         (b"\0\x01\0\0\0", b"OTTO\0", b"wOFF", b"wOF2")),
)  # fmt: skip
"""The kinds that cannot be read. If several match the first bytes or the name, the first counts."""

_BY_NAME = {suffix: kind for kind in reversed(KINDS) for suffix in kind.suffixes.split()}
_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_ZIP_NAME = re.compile(rb"PK\x03\x04.{22}(..)..", re.DOTALL)  # the length of a member's name
_OFFICE_NAMES = {b"[Content_Types].xml", b"_rels/.rels", b"docProps/app.xml"}
_OFFICE_FOLDERS = {b"word": ".docx", b"xl": ".xlsx", b"ppt": ".pptx"}
_MIMETYPES = {
    b"mimetypeapplication/epub+zip": ".epub",
    b"mimetypeapplication/vnd.oasis.opendocument.text": ".odt",
    b"mimetypeapplication/vnd.oasis.opendocument.spreadsheet": ".ods",
}
_PACKED = {
    b"\x1f\x8b\x08": ("gzip", ".gz"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
    b"BZh91AY&SY": ("bzip2", ".bz2"),
    b"\xfd7zXZ\0": ("xz", ".xz"),
    b"\x5d\0\0\x80\0\xff": ("lzma", ".lzma"),
}
"""Name and extension of every compression that can be read, by the first bytes of such files."""
_XML = re.compile(rb"<\?xml\b|<!(?:DOCTYPE|ELEMENT|ENTITY)\b", re.IGNORECASE)
_TAG = rb"<[A-Za-z][\w:.-]*(?:\s[^<>]*)?>"
_TWO_TAGS = re.compile(_TAG + rb"(?:\s*\n\s*)?<[A-Za-z/!?]")
# Words in angle brackets with spaces between them may be a tokenizer's: "<user> <url>".
_CLOSED_SECOND_TAG = re.compile(_TAG + rb"[ \t]+<([A-Za-z][\w:.-]*)\b[^<>]*>.*?</\1\s*>", re.DOTALL)
_TAG_WITH_ATTRIBUTE = re.compile(rb"<[A-Za-z][\w:.-]*\s+[A-Za-z][\w:.-]*=[\"'\w][^<>]*>")
_HTML_FRAGMENT = re.compile(
    rb"<(p|div|span|h[1-6]|ul|ol|table|article|section|center|blockquote|font)\b[^<>]*>"
    rb".*?</\1\s*>",
    re.DOTALL | re.IGNORECASE,
)
_XML_SUFFIXES = {".xml", ".tei", ".tmx", ".xlf", ".xliff", ".rss", ".sgml", ".sgm"}
MARKDOWN_SUFFIXES = {".md", ".markdown", ".mdx", ".rmd", ".qmd", ".rst"}
"""Extensions of files that are plain text even if they begin with tags of HTML."""
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x19\x1c-\x1f\x7f]")
_LOOKED_AT_BYTES = 1024
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def refuse_binary(url: str, head: bytes) -> None:
    """Refuses a file whose first bytes are those of a binary file. This holds for every format.

    Args:
        url: The file. Its extension shows how it should be compressed, and which kind of document a
            zip archive is.
        head: The first bytes, decompressed as the extension says.

    Raises:
        ValueError: The file is of a kind that cannot be read. Or it is compressed or an archive,
            but its extension does not say so.
    """
    _refuse_packed(url, head)
    kind = _find_by_magic(url, head)
    if kind and not looks_like_text(head):
        raise _refusal(url, kind)


def refuse_kinds(url: str, head: bytes) -> None:
    """Refuses a file from which no text can be read, by its first bytes or its extension.

    It is called if the user gave no format. It refuses the files that `refuse_binary` refuses, and
    also files of a kind that may look like text, such as PDF and PostScript.

    Args:
        url: The file, whose extension may show its kind.
        head: The first bytes, decompressed.

    Raises:
        ValueError: The file is of a kind in `KINDS`, or is compressed or an archive although its
            extension does not say so.
    """
    refuse_binary(url, head)
    kind = _find_by_magic(url, head) or _BY_NAME.get(plain_suffix(url))
    if kind and head.strip() and not (kind.is_binary and looks_like_text(head)):
        raise _refusal(url, kind)


def refuse_markup(url: str, text: bytes) -> None:
    """Refuses XML and SGML, whose tags would be read as text.

    Args:
        url: The file. Markdown may begin with tags of HTML, so its extensions are exempt.
        text: The first bytes of the file as UTF-8, without blanks before them.

    Raises:
        ValueError: The file begins as XML does, with two tags, with a tag that has attributes, or
            with an element of HTML.
    """
    suffix = plain_suffix(url)
    is_xml = bool(_XML.match(text)) or (
        suffix in _XML_SUFFIXES and (text.startswith(b"<") or b"</" in text)
    )
    is_fragment = bool(_HTML_FRAGMENT.match(text))
    patterns = (_TWO_TAGS, _CLOSED_SECOND_TAG, _TAG_WITH_ATTRIBUTE)
    has_tags = is_fragment or any(pattern.match(text) for pattern in patterns)
    if is_xml or (has_tags and suffix not in MARKDOWN_SUFFIXES):
        found = f"begins with {text[:40].decode(errors='replace')!r}"
        expected = "of XML and other markup only dumps of MediaWiki and HTML are read"
        cure = "write its texts as JSON lines (xml.etree.ElementTree.iterparse of Python reads XML)"
        if is_fragment:
            cure = "give --format html to take the text out of its tags"
        raise ValueError(
            f"{url}: {found}; {expected}: {cure}, or give --format text to read it as it stands"
        )


def refuse_zero_bytes(url: str, head: bytes) -> None:
    """Refuses a file with a zero byte, which no text has.

    Raises:
        ValueError: There is a zero byte among these first bytes.
    """
    offset = head.find(b"\0")
    if offset >= 0:
        found = f"found a zero byte at byte {offset}, expected text, which has none"
        cure = "leave it out, make text of it, or drop such bytes: `tr -d '\\000' < FILE > NEW`"
        raise ValueError(f"{url}: {found}; {cure}")


def refuse_archive(url: str, kind: str, head: bytes) -> None:
    """Refuses a file with the extension of an archive if its first bytes show something else.

    A zip archive whose members are parts of one document, such as a DOCX file, is refused too.

    Args:
        url: The file.
        kind: The kind of archive that its extension names: "zip" or "tar".
        head: The first bytes, decompressed as the extension says.

    Raises:
        ValueError: The file is of a kind in `KINDS`, or is compressed or packed in another way than
            its extension says.
    """
    document_kind = _find_in_zip(head) if kind == "zip" else None
    if document_kind:
        raise _refusal(url, document_kind)
    is_kind = head.startswith(_ZIP_MAGIC) if kind == "zip" else looks_like_tar(head)
    if not is_kind:
        refuse_binary(url, head)


def looks_like_text(head: bytes) -> bool:
    """Returns whether the first bytes may be text: UTF-8 without control characters, or UTF-16."""
    beginning = head[:_LOOKED_AT_BYTES]
    if beginning.startswith(_UTF16_MARKS):
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return False
    return _CONTROL.search(beginning) is None


def _refusal(url: str, kind: Kind) -> ValueError:
    """Returns the error for a file of a kind that cannot be read."""
    cure = kind.cure
    if not kind.is_binary:
        cure += ", or give --format text to read it as it stands"
    return ValueError(f"{url}: found {kind.name}, expected text; {cure}")


def _find_by_magic(url: str, head: bytes) -> Kind | None:
    """Returns the entry of `KINDS` that the first bytes of a file show, or None.

    Files of several kinds are zip archives, such as DOCX. Only among those does the file's
    extension decide.
    """
    if head.startswith(_ZIP_MAGIC):
        return _BY_NAME.get(plain_suffix(url)) or _find_in_zip(head)
    for kind in KINDS:
        if head.startswith(kind.magic, kind.offset):
            return None if kind.is_binary and looks_like_text(head) else kind
    return _BY_NAME[".tfrecord"] if _is_tfrecord(head) else None


def _find_in_zip(head: bytes) -> Kind | None:
    """Returns the entry of `KINDS` for a zip archive that is one file to its users, such as DOCX.

    The names of its first members show it. The result is None for an archive of separate files.

    Args:
        head: The first bytes of the archive.
    """
    names = []
    for header in _ZIP_NAME.finditer(head):
        length = int.from_bytes(header[1], "little")
        names.append(head[header.end() : header.end() + length])
    for mimetype, suffix in _MIMETYPES.items():
        if names[:1] == [b"mimetype"] and mimetype in head:
            return _BY_NAME[suffix]
    if _OFFICE_NAMES.intersection(names):
        for name in names:
            folder = name.partition(b"/")[0]
            if folder in _OFFICE_FOLDERS:
                return _BY_NAME[_OFFICE_FOLDERS[folder]]
    if names and all(name.endswith(b".npy") for name in names):
        return _BY_NAME[".npz"]
    if any(name.endswith(b"/data.pkl") for name in names):
        return _BY_NAME[".pt"]
    return _BY_NAME[".jar"] if names[:1] == [b"META-INF/MANIFEST.MF"] else None


def _is_tfrecord(head: bytes) -> bool:
    """Returns whether the checksum of the first record's length is right, as in every TFRecord."""
    if len(head) < struct.calcsize("<QI") or any(head[4:8]) or not any(head[:4]):
        return False
    (checksum,) = struct.unpack_from("<I", head, 8)
    return bool(checksum == masked_crc32c(head[:8]))


def _refuse_packed(url: str, head: bytes) -> None:
    """Refuses a file that is compressed or an archive although its extension does not say so.

    Args:
        url: The file.
        head: The first bytes, decompressed as the extension says.

    Raises:
        ValueError: `head` is still compressed, or is the beginning of an archive. An archive whose
            extension says so comes here only if its reader takes single files.
    """
    outer = compression_suffix(url)
    packed = next((_PACKED[magic] for magic in _PACKED if head.startswith(magic)), None)
    if packed is None and head.startswith(_ZIP_MAGIC) and not _find_by_magic(url, head):
        packed = ("zip", ".zip")

    if packed and outer:
        codec, suffix = packed
        command = next(name for name, extension in _PACKED.values() if extension == outer)
        found = f"holds {codec} data inside of its {command} data"
        cure = f"undo the outer one: `{command} -dc < FILE > NEW{suffix}`"
        raise ValueError(f"{url}: {found}; {cure}")

    if packed is None and looks_like_tar(head):
        packed = ("tar", f".tar{outer}")
    if packed:
        codec, suffix = packed
        if codec in ("zip", "tar") and plain_suffix(url) == f".{codec}":
            found = f"is a {codec} archive, expected a single file"
            raise ValueError(f"{url}: {found}; unpack it and give what it holds")
        is_tar = plain_suffix(url) == ".tar" and codec != "zip"
        suffix = f".tar{suffix}" if is_tar else suffix
        found = f"holds {codec} data, which its name does not say"
        raise ValueError(f"{url}: {found}; rename it to end in {suffix}")
