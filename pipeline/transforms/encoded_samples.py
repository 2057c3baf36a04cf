"""Encodes samples for their way to a WebDataset shard, and says why a sample cannot be encoded.

An encoded sample is what workers exchange. It consists of

- the hash of its key (16 bytes), by which samples are ordered,
- the number of bytes that it takes in a tar (8 bytes),
- for each of its files the length of the name (4 bytes), the length of the content (8 bytes), the
  name and the content.

Headers and padding of the tar are added when a shard is written (`pack_sample`). They take 512
bytes or more for each file, several times what a short text takes.
"""

import gzip
import hashlib
import operator
import re
import reprlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipeline.shards.shard_file import end_of_tar, pack_member, size_of_member
from pipeline.transforms.plain_values import to_plain

HASH_BYTES = 16
"""Number of bytes of the hash of a key, with which an encoded sample begins."""
HEAD_BYTES = HASH_BYTES + 8
"""Number of bytes before the files of an encoded sample."""
_LENGTHS = struct.Struct(">IQ")  # of the name and of the content of a file
NO_KEY = "no_key"
BAD_KEY = "bad_key"
BAD_ENTRY = "bad_entry"
EMPTY = "empty"
TOO_LARGE = "too_large"
DOUBLED_KEY = "doubled_key"
_NOTES_OF_WEBDATASET = {"__key__", "__url__", "__local_path__"}
"""Entries that webdataset adds to what it reads; all but the key are left out."""
_OF_TREES = {"json", "jsn", "mp", "msgpack", "msg", "cbor"}
"""Extensions whose values may hold rows."""
_NOT_IN_NAMES = r"\\\0\ud800-\udfff"
_BAD_IN_KEYS = re.compile(f"[{_NOT_IN_NAMES}]")
_BAD_IN_EXTENSIONS = re.compile(f"[/{_NOT_IN_NAMES}]")
_SKIPPED = re.compile(r"__[^/]*__(/|$)")
"""Names of files that webdataset skips when it reads a tar, because they are notes of its own."""


@dataclass(frozen=True)
class RejectedSample:
    """A sample that was left out, because `WriteToWebDataset` was told to reject bad samples.

    Attributes:
        reason: "no_key" if the sample has no key; "bad_key" if webdataset could not read its key
            back from the name of a file; "bad_entry" if the name or the value of an entry cannot be
            written; "empty" if there is no entry; "too_large" if the sample does not fit into a
            shard; or "doubled_key" if another sample with the same key was kept.
        key: The sample's key as text; empty if it has none.
        message: What was found, and what was expected.
        sample: The sample as it was given. But for "doubled_key" it is decoded from its encoded
            form, so the values of its entries are `bytes`.
    """

    reason: str
    key: str
    message: str
    sample: Any


class BadSampleError(ValueError):
    """A sample cannot be written.

    Attributes:
        reason: Why not, as one of the words of `RejectedSample.reason`.
        key: The sample's key as text; empty if it has none.
    """

    def __init__(self, reason: str, key: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.key, str(self))


def encode_sample(sample: Mapping[str, Any], max_bytes: int) -> bytes:
    """Returns a sample as the bytes that workers exchange.

    Args:
        sample: The sample. Its key is text, or an integer, which is written in decimal.
        max_bytes: The largest size of a shard.

    Raises:
        BadSampleError: The sample has no key, or a key that webdataset would read back as another
            one. Or it has no entry, or two entries whose extensions differ only in capitals, or an
            entry that cannot be encoded or read back. Or it is larger than a shard.
    """
    key = _check_key(sample)
    extensions = [name for name in sorted(sample, key=str) if name not in _NOTES_OF_WEBDATASET]
    _check_extensions(key, extensions)
    num_bytes = 0
    files: list[bytes] = []
    for extension in extensions:
        if sample[extension] is None:
            continue
        data = _encode_value(key, extension, sample[extension])
        name = f"{key}.{extension}"
        num_bytes += size_of_member(name, len(data))
        encoded_name = name.encode()
        files += (_LENGTHS.pack(len(encoded_name), len(data)), encoded_name, data)
    if not files:
        raise BadSampleError(
            EMPTY, key, f"the sample {key!r} is empty: it has no entry besides __key__"
        )
    if num_bytes + len(end_of_tar(num_bytes)) > max_bytes:
        raise BadSampleError(
            TOO_LARGE,
            key,
            f"the sample {key!r} takes {num_bytes:,} bytes, more than a shard of"
            f" max_bytes={max_bytes:,}; give a larger max_bytes",
        )
    return b"".join([hash_key(key), num_bytes.to_bytes(HEAD_BYTES - HASH_BYTES, "big"), *files])


def tar_bytes(encoded: bytes) -> int:
    """Returns how many bytes an encoded sample says that it takes in a tar."""
    return int.from_bytes(encoded[HASH_BYTES:HEAD_BYTES], "big")


def pack_sample(encoded: bytes) -> Iterator[bytes]:
    """Yields the members of a tar that hold the files of an encoded sample."""
    for name, data in _iterate_files(encoded):
        yield pack_member(name, data)


def _iterate_files(encoded: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the content of each file of an encoded sample."""
    position = HEAD_BYTES
    while position < len(encoded):
        name_bytes, data_bytes = _LENGTHS.unpack_from(encoded, position)
        begin = position + _LENGTHS.size + name_bytes
        position = begin + data_bytes
        yield encoded[begin - name_bytes : begin].decode(), encoded[begin:position]


def hash_key(key: str) -> bytes:
    """Returns the hash of a key: blake2b of 16 bytes. Samples are ordered by these hashes."""
    return hashlib.blake2b(key.encode(), digest_size=HASH_BYTES).digest()


def decode_sample(encoded: bytes) -> dict[str, Any]:
    """Decodes what `encode_sample` returned.

    Returns:
        The sample's key under "__key__", and under each extension the bytes of that file.
    """
    sample: dict[str, Any] = {}
    for path, data in _iterate_files(encoded):
        folder, slash, name = path.rpartition("/")
        base, _, extension = name.partition(".")
        sample["__key__"] = folder + slash + base
        sample[extension] = data
    return sample


def _check_key(sample: Any) -> str:
    """Returns the key of a sample as text.

    Raises:
        BadSampleError: The sample has no key, or webdataset would read back another one.
    """
    given = sample.get("__key__") if isinstance(sample, Mapping) else None
    if given is None or isinstance(given, str | bool) or not hasattr(given, "__index__"):
        key = given
    else:
        key = str(operator.index(given))
    if not isinstance(key, str) or not key:
        raise BadSampleError(
            NO_KEY if given is None or given == "" else BAD_KEY,
            "" if given is None else str(given),
            f"a sample's __key__ is {given!r}, expected text that is not empty, or an integer; the"
            f" sample is {reprlib.repr(sample)}",
        )
    *folders, base = key.split("/")
    if "." in base or "" in (*folders, base):
        raise BadSampleError(
            BAD_KEY,
            key,
            f"a sample's __key__ is {key!r}, and webdataset would read another key, which ends at"
            " the first '.' after the last '/'; expected no '.' there, and a name before and after"
            " each '/'; replace it, as by key.replace('.', '_')",
        )
    if {".", ".."} & {*folders} or _BAD_IN_KEYS.search(key):
        raise BadSampleError(
            BAD_KEY,
            key,
            f"a sample's __key__ is {key!r}, expected text that can be a file's name, without '\\',"
            " '\\0', lone surrogates and the folders '.' and '..'",
        )
    return key


def _check_extensions(key: str, extensions: Sequence[Any]) -> None:
    """Refuses extensions that cannot be in a tar, or that webdataset would not read back.

    Args:
        key: Key of the sample.
        extensions: All extensions of the sample, of any type.

    Raises:
        BadSampleError: An extension is refused, or two extensions differ only in capitals.
    """
    spelled: dict[str, str] = {}  # each extension, by its lower-case form
    for extension in extensions:
        fault = _find_fault(key, extension)
        other = spelled.setdefault(str(extension).lower(), extension)
        if not fault and other != extension:
            fault = (
                f"is {other!r} in other letters, and webdataset reads both as"
                f" {extension.lower()!r}; rename one of them"
            )
        if fault:
            where = f"the sample {key!r}: the extension {extension!r}"
            raise BadSampleError(BAD_ENTRY, key, f"{where} {fault}")


def _find_fault(key: str, extension: Any) -> str:
    """Says what is wrong with an extension, as the end of a message; empty if nothing is."""
    if not isinstance(extension, str) or not extension:
        return "is no end of a file's name; expected text such as 'txt'"
    if _BAD_IN_EXTENSIONS.search(extension):
        return "is no end of a file's name; expected no '/' and '\\'"
    if extension.startswith("_"):
        return (
            "begins with '_', which webdataset keeps for notes that it does not write; rename the"
            " entry, or leave it out before"
        )
    if _SKIPPED.match(f"{key}.{extension}"):
        return (
            f"makes a file {key}.{extension}, which webdataset skips as a note of its own; give"
            " another key or extension"
        )
    return ""


def _encode_value(key: str, extension: str, value: Any) -> bytes:
    """Returns the bytes that are written into the file of an entry.

    `bytes` are returned unchanged, and text is encoded in UTF-8. Other values are encoded by the
    function that webdataset has for the extension. If the extension ends with .gz, the result is
    compressed.

    Raises:
        BadSampleError: The value cannot be encoded by this extension.
        ImportError: A package is missing that webdataset needs for this extension.
    """
    if isinstance(value, bytes):
        return value
    compressed = extension.lower().endswith(".gz")
    kind = extension.lower().removesuffix(".gz").rpartition(".")[2]
    try:
        if isinstance(value, str):
            data = value.encode()
        else:
            data = bytes(_encoder(kind)(to_plain(value) if kind in _OF_TREES else value))
    except MemoryError:
        raise  # a fault of the worker, not of this sample
    except ImportError as error:
        raise ImportError(
            f"entries {extension!r} cannot be encoded: {error}; install that package where the"
            " pipeline runs"
        ) from error
    except Exception as error:
        raise BadSampleError(
            BAD_ENTRY,
            key,
            f"the sample {key!r}: its {extension!r} is a {type(value).__name__} that cannot be"
            f" encoded ({error}); give bytes, or what webdataset encodes by this extension",
        ) from error
    return gzip.compress(data, mtime=0) if compressed else data


@cache
def _encoder(extension: str) -> Any:
    """Returns the function by which webdataset encodes values for an extension such as "json".

    Raises:
        ValueError: webdataset has no function for this extension.
    """
    from webdataset.writer import default_handlers  # imports torch if it is installed

    if extension not in default_handlers:
        raise ValueError(f"webdataset encodes no {extension!r}")
    return default_handlers[extension]
