"""Token parts and their index: what goes in comes out, by bucket, once; damage is named."""

import hashlib
import itertools

import numpy as np
import pytest

from pipeline.storage.folder import Folder
from pipeline.tokens.buckets import plan_buckets
from pipeline.tokens.token_index import (
    TokenParts,
    build_index,
    open_index,
    read_bucket,
)
from pipeline.tokens.token_parts import (
    TokenizedDocument,
    pack_documents,
    unpack_documents,
)
from tests.pipeline.programs import refused


def make_document(number, dtype=np.uint16):
    lengths = np.array([1 + number % 5, 2], np.uint16)
    tokens = np.arange(number, number + int(lengths.sum())).astype(dtype)
    document_id = hashlib.blake2b(str(number).encode(), digest_size=16).digest()
    return TokenizedDocument(document_id, 10 + number, lengths, tokens)


def as_values(document):
    lengths, tokens = document.sentence_lengths.tolist(), document.tokens.tolist()
    return document.id, document.cleaned_bytes, lengths, tokens


def write_parts(folder, parts):
    folder = Folder(str(folder))
    names = []
    for number, documents in enumerate(parts):
        names.append(f"part{number}")
        tokens, index = pack_documents(documents)
        folder.write(f"{names[-1]}.tokens", tokens)
        folder.write(f"{names[-1]}.index", index)
    with open_index(folder, names) as index:
        return folder, names, build_index(index)


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
    with refused("part"):
        list(unpack_documents(bytes(changed), np.uint16, "part"))


def test_a_cut_range_is_an_error():
    data, _ = pack_documents([make_document(3), make_document(4)])
    for stop in (len(data) - 1, 20):
        with refused("delete the folder of token parts"):
            list(unpack_documents(data[:stop], np.uint16, "part"))


def test_totals_do_not_depend_on_how_documents_are_dealt(tmp_path):
    documents = [make_document(number) for number in range(300)]
    one = write_parts(tmp_path / "one", [documents])[2]
    three = write_parts(tmp_path / "three", [documents[200:], [], documents[:200]])[2]
    assert one == three
    assert (one.documents, one.duplicates) == (300, 0)
    copies = write_parts(tmp_path / "copies", [documents, documents[:7], documents[:2]])[2]
    assert (copies.documents, copies.duplicates) == (300, 9)
    assert copies.documents_hash == one.documents_hash
    assert one.tokens == sum(len(document.tokens) for document in documents)
    assert one.sources[0].lowest_ids == sorted(document.id.hex() for document in documents)


@pytest.mark.parametrize("size", [0, 100, 1028 + 44, -1])
def test_a_cut_index_is_named(tmp_path, size):
    folder, names, _ = write_parts(tmp_path, [[make_document(number) for number in range(9)]])
    data = folder.read("part0.index")
    folder.write("part0.index", data[:size])
    with refused(r"part0\.index: found \d+ bytes, expected \d+ .*; delete the folder"):
        open_index(folder, names).__enter__()
    folder.remove(["part0.index"])
    with refused(r"part0\.index .*missing; delete the folder"):
        open_index(folder, names).__enter__()


@pytest.mark.parametrize("num_buckets", [1, 2, 8])
def test_buckets_hold_every_document_once(tmp_path, num_buckets):
    documents = [make_document(number) for number in range(400)]
    folder, names, totals = write_parts(tmp_path, [documents[:150], documents[150:]])
    lowest = totals.sources[0].lowest_ids
    held_out = bytes.fromhex("".join(lowest[number] for number in (0, 1, 2, 50, 399)))
    found = {}
    for bucket in plan_buckets(num_buckets, held_out):
        read = read_bucket(TokenParts(folder, "uint16", held_out=held_out), names, bucket)
        found[bucket.name] = [document.id for document in read]
    assert sorted(itertools.chain(*found.values())) == sorted(document.id for document in documents)
    assert b"".join(sorted(found["validation-00000-of-00001"])) == held_out


def test_buckets_finer_than_the_index_hold_their_documents(tmp_path):
    documents = [make_document(number) for number in range(300)]
    folder, names, totals = write_parts(tmp_path, [documents[:150], documents[150:]])
    assert len(totals.documents_by_prefix) == 4096
    buckets, tokens = plan_buckets(65_536, b""), TokenParts(folder, "uint16")
    for start in {int.from_bytes(document.id[:2], "big") for document in documents[::5]}:
        found = sorted({document.id for document in read_bucket(tokens, names, buckets[start])})
        assert found == sorted(
            document.id for document in documents if document.id[:2] == start.to_bytes(2, "big")
        )
