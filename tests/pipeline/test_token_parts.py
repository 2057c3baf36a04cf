"""Token parts and their index: what goes in comes out, by bucket, once; damage is named."""

import hashlib
import itertools
import tracemalloc

import numpy as np
import pytest

from pipeline.storage.folder import Folder
from pipeline.tokens.buckets import plan_buckets
from pipeline.tokens.grouped_rows import open_groups, pack_rows
from pipeline.tokens.token_index import (
    TokenParts,
    build_index,
    iterate_index,
    open_index,
    read_bucket,
    read_part_rows,
)
from pipeline.tokens.token_parts import (
    INDEX_DTYPE,
    TokenizedDocument,
    pack_documents,
    unpack_documents,
)
from tests.counting import empty_store


def make_document(number, dtype=np.uint16, source=0):
    lengths = np.array([1 + number % 5, 2], np.uint16)
    tokens = np.arange(number, number + int(lengths.sum())).astype(dtype)
    document_id = hashlib.blake2b(str(number).encode(), digest_size=16).digest()
    return TokenizedDocument(document_id, 10 + number, lengths, tokens, source)


def as_values(document):
    lengths, tokens = document.sentence_lengths.tolist(), document.tokens.tolist()
    return document.id, document.cleaned_bytes, lengths, tokens


def write_parts(folder, *parts, num_sources=1):
    folder, names = Folder(str(folder)), [f"part{number}" for number in range(len(parts))]
    for name, documents in zip(names, parts, strict=True):
        tokens, index = pack_documents(documents)
        folder.write(f"{name}.tokens", tokens)
        folder.write(f"{name}.index", index)
    with open_index(folder, names) as index:
        return folder, names, build_index(index, num_sources)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_documents_come_back_sorted_by_id(dtype):
    documents = [make_document(number, dtype) for number in range(20)]
    data, _ = pack_documents(documents)
    found = [as_values(document) for document in unpack_documents(data, dtype, "part")]
    assert found == sorted(map(as_values, documents))


@pytest.mark.parametrize("position", [5, 17, 21, 27, 40, -1])
def test_a_changed_byte_is_an_error(position):
    data, _ = pack_documents([make_document(3)])
    changed = bytearray(data)
    changed[position] ^= 1
    with pytest.raises(ValueError, match="part"):
        list(unpack_documents(bytes(changed), np.uint16, "part"))


def test_a_cut_range_is_an_error():
    data, _ = pack_documents([make_document(3), make_document(4)])
    for stop in (len(data) - 1, 20):
        with pytest.raises(ValueError, match="delete the folder of token parts"):
            list(unpack_documents(data[:stop], np.uint16, "part"))


DOCUMENTS = [make_document(number) for number in range(400)]


def test_totals_do_not_depend_on_how_documents_are_dealt(tmp_path):
    one = write_parts(tmp_path / "one", DOCUMENTS)[2]
    assert write_parts(tmp_path / "three", DOCUMENTS[200:], [], DOCUMENTS[:200])[2] == one
    assert (one.documents, one.duplicates) == (400, 0)
    copies = write_parts(tmp_path / "copies", DOCUMENTS, DOCUMENTS[:7], DOCUMENTS[:2])[2]
    assert (copies.documents, copies.duplicates) == (400, 9)
    assert copies.documents_hash == one.documents_hash
    assert one.tokens == sum(len(document.tokens) for document in DOCUMENTS)
    assert one.sources[0].lowest_ids == sorted(document.id.hex() for document in DOCUMENTS)


def test_a_document_of_another_source_is_another_corpus(tmp_path):
    hashes = set()
    for first in (60, 61):
        documents = [make_document(number, source=number >= first) for number in range(120)]
        totals = write_parts(tmp_path / str(first), documents, num_sources=2)[2]
        hashes.add(totals.documents_hash)
    assert len(hashes) == 2


def test_the_rows_of_all_parts_come_in_groups_with_their_places(tmp_path):
    folder, names, _ = write_parts(tmp_path, DOCUMENTS[:300], [], DOCUMENTS[200:])
    with open_index(folder, names) as index:
        groups = list(iterate_index(index))
    assert len(groups) == 256
    assert sum(map(len, groups)) == 500
    parts = [read_part_rows(folder, f"{name}.index") for name in names]
    for group, rows in enumerate(groups):
        assert all(rows["high"] >> np.uint64(56) == group)
        for row in rows:
            own = parts[row["file"]][row["number"]]
            assert tuple(own) == tuple(row)[: len(own)]


def test_every_index_is_fetched_by_one_request():
    store = empty_store()
    parts = [DOCUMENTS[start : start + 4] for start in range(0, 400, 4)]
    folder, names, _ = write_parts("counted://parts", *parts)
    store.requests.clear()
    with open_index(folder, names) as index:
        for _ in range(2):
            assert sum(map(len, iterate_index(index))) == 400
    assert store.kinds() == {"cat_file": 100, "find": 1}
    assert store.count("cat_file", ".index") == 100


def test_memory_is_not_that_of_the_index(tmp_path):
    rows = np.zeros(1 << 12, INDEX_DTYPE)
    rows["high"] = np.arange(len(rows), dtype=np.uint64) << np.uint64(52)
    folder, names = Folder(str(tmp_path)), [f"{number}.index" for number in range(100)]
    for name in names:
        folder.write(name, pack_rows(rows, rows["high"] >> np.uint64(56)))
    tracemalloc.start()
    with open_groups(folder, names, INDEX_DTYPE) as index:
        read = sum(map(len, iterate_index(index)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read == 100 << 12
    assert peak < 18e6 + 16 * rows.nbytes, f"{peak:,} of {100 * rows.nbytes:,} bytes"


@pytest.mark.parametrize("size", [0, 100, 1028 + 44, -1])
def test_a_cut_index_is_named(tmp_path, size):
    folder, names, _ = write_parts(tmp_path, DOCUMENTS[:9])
    data = folder.read("part0.index")
    folder.write("part0.index", data[:size])
    said = r"part0\.index: found \d+ bytes, expected \d+ .*; delete the folder"
    with pytest.raises(ValueError, match=said):
        open_index(folder, names).__enter__()
    folder.remove(["part0.index"])
    with pytest.raises(ValueError, match=r"part0\.index .*missing; delete the folder"):
        open_index(folder, names).__enter__()


@pytest.mark.parametrize("num_buckets", [1, 2, 8])
def test_buckets_hold_every_document_once(tmp_path, num_buckets):
    folder, names, totals = write_parts(tmp_path, DOCUMENTS[:150], DOCUMENTS[150:])
    lowest = totals.sources[0].lowest_ids
    held_out = bytes.fromhex("".join(lowest[number] for number in (0, 1, 2, 50, 399)))
    found = {}
    for bucket in plan_buckets(num_buckets, held_out):
        read = read_bucket(TokenParts(folder, "uint16", held_out=held_out), names, bucket)
        found[bucket.name] = [document.id for document in read]
    assert sorted(itertools.chain(*found.values())) == sorted(document.id for document in DOCUMENTS)
    assert b"".join(sorted(found["validation-00000-of-00001"])) == held_out


def test_buckets_finer_than_the_index_hold_their_documents(tmp_path):
    folder, names, totals = write_parts(tmp_path, DOCUMENTS[:150], DOCUMENTS[150:])
    assert len(totals.documents_by_prefix) == 4096
    buckets, tokens = plan_buckets(65_536, b""), TokenParts(folder, "uint16")
    for start in {document.id[:2] for document in DOCUMENTS[::5]}:
        bucket = buckets[int.from_bytes(start, "big")]
        found = sorted({document.id for document in read_bucket(tokens, names, bucket)})
        assert found == sorted(each.id for each in DOCUMENTS if each.id.startswith(start))
