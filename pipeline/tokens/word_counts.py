"""Word counts of a sample of the documents: counted list by list, added up, written as one table.

Words are dealt into NUM_WORD_BUCKETS by a checksum, so that Beam does not move single words.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.documents import Document
from pipeline.documents.parts import Part, cut_again
from pipeline.storage.folder import Folder
from pipeline.text.cleaning import document_id
from pipeline.tokens.document_lists import DocumentList
from tokenizer.word_rule import WordRule
from tokenizer.words import count_words

MAX_SAMPLE_BYTES = 2 * 2**30
_PIECE_BYTES = 8 * 2**20
_FEWEST_PIECES = 64
MAX_LEARNED_WORDS = 1_000_000
"""Words a vocabulary is learned from, the commonest: a bound on the learner's memory."""

NUM_WORD_BUCKETS = 16
_SCHEMA = pa.schema(
    [pa.field("word", pa.string(), nullable=False), pa.field("count", pa.int64(), nullable=False)]
)


def sample_bits(text_bytes: int) -> int:
    """The least k for which 2^-k of the text, the sample, is at most MAX_SAMPLE_BYTES."""
    return (max(1, -(-text_bytes // MAX_SAMPLE_BYTES)) - 1).bit_length()


def choose_sample(parts: Sequence[Part]) -> dict[Part, int]:
    """Parts to read, each with how many first bits of a document's id must be ones for the sample.

    All parts where they fit. Otherwise each source is cut anew into pieces of 8 MiB, and one of 2^a
    pieces is read, at least 64 of a source; of their documents one of 2^(k - a) is counted. A piece
    of more than a 64th of its source, which cannot be cut, is always read, and one of its 2^k
    documents counted. So every document counts with the same probability.
    """
    num_bits = sample_bits(sum(part.text_bytes for part in parts))
    if not num_bits:
        return dict.fromkeys(parts, 0)
    chosen: dict[Part, int] = {}
    for source in sorted({part.source for part in parts}):
        pieces = cut_again([part for part in parts if part.source == source], _PIECE_BYTES)
        most = sum(piece.text_bytes for piece in pieces) // _FEWEST_PIECES
        chosen |= {piece: num_bits for piece in pieces if piece.text_bytes > most}
        others = [piece for piece in pieces if piece.text_bytes <= most]
        skipped = min(num_bits, max(0, (len(others) // _FEWEST_PIECES).bit_length() - 1))
        chosen |= dict.fromkeys(others[(1 << skipped) // 2 :: 1 << skipped], num_bits - skipped)
    return chosen


def sample_documents(
    documents: DocumentList[Document], bits_of: Mapping[str, int]
) -> DocumentList[Document]:
    """Keeps cleaned documents whose ids begin with as many ones as `bits_of` their part's key says.

    These are the highest ids, as the lowest are for validation.
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
    """Counts of a list's words, times its source's factor, by the buckets that have any."""
    factor = factors[documents.source]
    buckets: dict[int, dict[str, int]] = {}
    texts = (document.text for document in documents.documents)
    for word, count in count_words(texts, rule).items():
        bucket = zlib.crc32(word.encode()) % NUM_WORD_BUCKETS
        buckets.setdefault(bucket, {})[word] = count * factor
    yield from buckets.items()


def counts_table(counts: Mapping[str, int]) -> bytes:
    """A Parquet file of columns word, ascending by code points, and count."""
    words = sorted(counts)
    columns = {"word": words, "count": [counts[word] for word in words]}
    return _write_table(pa.table(columns, schema=_SCHEMA))


def join_tables(folder: Folder, names: Sequence[str]) -> bytes:
    """All words of tables that share none, ascending by code points, as one Parquet file."""
    tables = [_read_table(folder.read(name)) for name in sorted(names)]
    return _write_table(pa.concat_tables([_SCHEMA.empty_table(), *tables]).sort_by("word"))


def read_commonest(data: bytes) -> tuple[list[str], list[int]]:
    """Words and counts of the MAX_LEARNED_WORDS commonest words of a table sorted by word."""
    table = _read_table(data)
    order = np.argsort(-table["count"].to_numpy(), kind="stable")[:MAX_LEARNED_WORDS]
    kept = table.take(np.sort(order))
    return kept["word"].to_pylist(), kept["count"].to_pylist()


def _read_table(data: bytes) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def _write_table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())
