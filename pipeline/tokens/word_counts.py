"""Counts the words of a sample of the documents, and joins the counts in one table.

A hash of each word decides to which of NUM_WORD_BUCKETS buckets the word belongs. Beam moves the
counts of a list of documents in one element for each bucket, because moving single words would be
slow. Then the counts of each bucket are added up in a table.

A seal (`WordSeal`) is a checksum of counts. The record of each list has a seal of the list's counts
in every bucket. The seals of all lists add up to the seal that the bucket's table must have. So it
is noticed if a runner lost or repeated counts, or if a store listed too few files.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.documents import Document
from pipeline.documents.parts import Part, cut_again
from pipeline.shards.manifest import named_damage, open_parquet
from pipeline.storage.folder import Folder
from pipeline.storage.json_files import read_present
from pipeline.text.cleaning import document_id
from pipeline.tokens.document_lists import DocumentList
from tokenizer.word_rule import WordRule
from tokenizer.words import count_words

MAX_SAMPLE_BYTES = 2 * 2**30
_PART_BYTES = 8 * 2**20
_FEWEST_PARTS = 64
MAX_LEARNED_WORDS = 1_000_000
"""A vocabulary is learned from this many of the commonest words, which bounds the memory."""

NUM_WORD_BUCKETS = 16
WORD_COUNTS = "word_counts.parquet"
_CHECKSUM_LIMIT = 1 << 64
_COUNT_AGAIN = (
    "run the same command again, which counts anew; leave only one build at work on this output"
)
_SCHEMA = pa.schema(
    [pa.field("word", pa.string(), nullable=False), pa.field("count", pa.int64(), nullable=False)]
)


def sample_bits(text_bytes: int) -> int:
    """Returns k for a sample of one out of 2^k documents.

    k is the smallest number for which text_bytes / 2^k is at most MAX_SAMPLE_BYTES (2 GiB).
    """
    return (max(1, -(-text_bytes // MAX_SAMPLE_BYTES)) - 1).bit_length()


def choose_sample(parts: Sequence[Part]) -> dict[Part, int]:
    """Chooses the parts from which words are counted (docs/format.md, section 1).

    If there are at most 2 GiB of text, all parts are chosen and all documents are counted.
    Otherwise one in 2^k documents is counted (`sample_bits`). So that most of the text need not
    even be read, the sample is drawn in two steps:

    1. Each source is cut anew into parts of 8 MiB. One in 2^a of these parts is read. The number a
       is at most k, and so small that at least 64 parts are read (or all, if there are fewer).
    2. In the parts that are read, one in 2^(k - a) documents is counted.

    A file that cannot be cut may be a part with more than a 64th of the source. Such a part is
    always read, and one in 2^k of its documents is counted. So every document has the same
    probability to be counted.

    Args:
        parts: All parts of the input.

    Returns:
        The parts to read. The value of a part is a number of bits: a document of the part is
        counted if this many first bits of its id are all 1.
    """
    num_bits = sample_bits(sum(part.text_bytes for part in parts))
    if not num_bits:
        return dict.fromkeys(parts, 0)
    chosen: dict[Part, int] = {}
    for source in sorted({part.source for part in parts}):
        new_parts = cut_again([part for part in parts if part.source == source], _PART_BYTES)
        most_bytes = sum(part.text_bytes for part in new_parts) // _FEWEST_PARTS
        long_parts = [part for part in new_parts if part.text_bytes > most_bytes]
        chosen |= dict.fromkeys(long_parts, num_bits)

        short_parts = [part for part in new_parts if part.text_bytes <= most_bytes]
        most_part_bits = max(0, (len(short_parts) // _FEWEST_PARTS).bit_length() - 1)
        part_bits = min(num_bits, most_part_bits)  # a of the rule above
        step = 1 << part_bits
        chosen |= dict.fromkeys(short_parts[step // 2 :: step], num_bits - part_bits)
    return chosen


def sample_documents(
    documents: DocumentList[Document], bits_of: Mapping[str, int]
) -> DocumentList[Document]:
    """Keeps the documents that belong to the sample.

    If one out of 2^k documents is to be kept, they are the documents whose ids begin with k bits
    that are all 1. These are the highest ids. The documents with the lowest ids are not taken,
    because validation documents are chosen from them.

    Args:
        documents: Cleaned documents of one part of the input.
        bits_of: The number k of each part, by the part's key. All documents of other parts are
            kept.
    """
    num_bits = bits_of.get(documents.part, 0)
    assert 0 <= num_bits <= 64, f"a sample of 2^-{num_bits} of the documents"
    ones = (1 << num_bits) - 1

    def is_chosen(document: Document) -> bool:
        return int.from_bytes(document_id(document.text)[:8], "big") >> (64 - num_bits) == ones

    return documents.replace(list(filter(is_chosen, documents.documents)), {})


def count_list(
    documents: DocumentList[Document], rule: WordRule, factors: Sequence[int] = (1,)
) -> Iterator[tuple[int, dict[str, int]]]:
    """Counts the words of a list of documents, bucket by bucket.

    The crc32 of a word decides to which of NUM_WORD_BUCKETS buckets it belongs.

    Args:
        documents: Cleaned documents.
        rule: The rule by which a text becomes words.
        factors: For each source the number by which its counts are multiplied.

    Yields:
        The index of a bucket, and the count of each word of these documents that belongs to it.
    """
    factor = factors[documents.source]
    buckets: dict[int, dict[str, int]] = {}
    texts = (document.text for document in documents.documents)
    for word, count in count_words(texts, rule).items():
        bucket = zlib.crc32(word.encode()) % NUM_WORD_BUCKETS
        buckets.setdefault(bucket, {})[word] = count * factor
    yield from buckets.items()


@dataclass(frozen=True)
class WordSeal:
    """A checksum of the counts of words.

    If the counts of two lists are added, the fields of their seals add up to those of the sum.

    Attributes:
        count: The sum of the counts of all words.
        checksum: The sum of each word's crc32 times its count, modulo 2^64.
    """

    count: int
    checksum: int

    def __str__(self) -> str:
        return f"{self.count:,} words (checksum {self.checksum:016x})"


def seal_counts(counts: Mapping[str, int]) -> WordSeal:
    """Returns the seal of the counts of words."""
    checksum = sum(zlib.crc32(word.encode()) * count for word, count in counts.items())
    return WordSeal(sum(counts.values()), checksum % _CHECKSUM_LIMIT)


def add_word_seals(seals_of_lists: Iterable[Mapping[int, WordSeal]]) -> dict[int, WordSeal]:
    """Adds up the seals of all lists of documents, bucket by bucket.

    Args:
        seals_of_lists: For each list the seal of its words in each bucket, by the bucket's index.

    Returns:
        The seal that the table of each bucket must have.
    """
    total: dict[int, WordSeal] = {}
    for seals in seals_of_lists:
        for bucket, seal in seals.items():
            before = total.get(bucket, WordSeal(0, 0))
            checksum = (before.checksum + seal.checksum) % _CHECKSUM_LIMIT
            total[bucket] = WordSeal(before.count + seal.count, checksum)
    return dict(sorted(total.items()))


def bucket_name(bucket: int) -> str:
    """Returns the file name of a bucket's table."""
    return f"words-{bucket:05d}.parquet"


def counts_table(counts: Mapping[str, int]) -> bytes:
    """Returns counts as a Parquet file with the columns word and count, sorted by word.

    Words are sorted by code points.
    """
    words = sorted(counts)
    columns = {"word": words, "count": [counts[word] for word in words]}
    return _write_table(pa.table(columns, schema=_SCHEMA))


def join_tables(folder: Folder, seals: Mapping[int, WordSeal]) -> bytes:
    """Joins the tables of the buckets that have words.

    Args:
        folder: Holds the tables.
        seals: The seal that the table of each bucket must have (`add_word_seals`).

    Returns:
        All words, in ascending order of code points, as one Parquet file.

    Raises:
        FileNotFoundError: A table is missing.
        ValueError: A table is damaged, or its counts do not match its seal.
    """
    tables = [_read_bucket(folder, bucket, seal) for bucket, seal in sorted(seals.items())]
    return _write_table(pa.concat_tables([_SCHEMA.empty_table(), *tables]).sort_by("word"))


def _read_bucket(folder: Folder, bucket: int, seal: WordSeal) -> pa.Table:
    """Reads the table of a bucket, and checks it against its seal.

    Raises:
        FileNotFoundError: The table is missing.
        ValueError: The table is damaged, or does not have the seal.
    """
    name = bucket_name(bucket)
    where = folder.locate(name)
    table = _read_table(read_present(folder, name, _COUNT_AGAIN), where, _COUNT_AGAIN)
    counts = dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True))
    found = seal_counts(counts)
    if found != seal or len(counts) != len(table):
        raise ValueError(
            f"{where}: holds {found}, expected {seal} by the records of the lists that were"
            f" counted: the runner lost or repeated some; {_COUNT_AGAIN}"
        )
    return table


def read_commonest(data: bytes, where: str = WORD_COUNTS) -> tuple[list[str], list[int]]:
    """Reads the commonest words of a table.

    Args:
        data: The bytes of the table, which is sorted by word.
        where: The URL of the table, for messages.

    Returns:
        At most MAX_LEARNED_WORDS words in the order of the table, and the count of each. Of words
        that are equally frequent, those that are first in the table are taken.

    Raises:
        ValueError: The table is damaged.
    """
    table = _read_table(data, where, "delete it and run the same command again")
    order = np.argsort(-table["count"].to_numpy(), kind="stable")[:MAX_LEARNED_WORDS]
    kept = table.take(np.sort(order))
    return kept["word"].to_pylist(), kept["count"].to_pylist()


def _read_table(data: bytes, where: str, remedy: str) -> pa.Table:
    """Parses a table of words and counts; raises a ValueError that ends with `remedy`."""
    with named_damage(where, remedy):
        table = open_parquet(pa.BufferReader(data)).read(use_threads=False)
    if not table.schema.equals(_SCHEMA):
        raise ValueError(
            f"{where}: its columns are {table.schema.names}, expected {_SCHEMA.names}; {remedy}"
        )
    return table


def _write_table(table: pa.Table) -> bytes:
    """Returns a table as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue())
