"""The index from documents to instances, held to a reading of every block."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pipeline.shards.block import decode_block, decode_documents, encode_block
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.shards.document_index import open_document_index
from tests.datasets import TINY, write_dataset
from tests.trainer.tiny_dataset import random_block

NUM_BUCKETS = 4
BLOCK = 16  # instances of a full block of 4,096 tokens


def block_of_bucket(rng, bucket, num_instances):
    """Instances of ten documents of a bucket; some B are of another document of it."""
    block = random_block(rng, num_instances, 16, 60)
    first = bucket * (2**64 // NUM_BUCKETS)
    documents = np.uint64(first) + np.arange(10, dtype=np.uint64) * np.uint64(3)
    block.document_a[:] = rng.choice(documents, num_instances)
    block.document_b[:] = np.where(
        rng.random(num_instances) < 0.5, block.document_a, rng.choice(documents, num_instances)
    )
    return block


def write_buckets(folder, **settings):
    """Two passes of four shards of 40 instances, and one of validation, of two lengths."""
    rng = np.random.default_rng(5)
    shards = {}
    for seq_len, size in ((4096, 16), (2048, 32)):
        for place in [(0, n) for n in range(NUM_BUCKETS)] + [(1, n) for n in range(NUM_BUCKETS)]:
            shards["train", seq_len, *place] = [
                block_of_bucket(rng, place[1], min(size, 40 - start))
                for start in range(0, 40, size)
            ]
        shards["validation", seq_len, 0, 0] = [random_block(rng, 8, 16, 60)]
    return write_dataset(folder, shards, 60, {"lower_case": True, **settings})


@pytest.fixture(scope="module")
def buckets(tmp_path_factory):
    """A dataset as our build deals it."""
    folder = tmp_path_factory.mktemp("buckets")
    return open_dataset(str(write_buckets(folder, documents_hash="0" * 64)))


@pytest.fixture(scope="module")
def undealt(tmp_path_factory, make_dataset):
    """A dataset whose shards hold whatever documents they like."""
    folder = tmp_path_factory.mktemp("undealt")
    return open_dataset(str(make_dataset(folder, ((20, 30), (10, 40)), validation=(12,))))


def read_all(dataset, split, ids, seq_lens=None):
    """Document, length, pass, shard, row, is_a, is_b of the instances with one of the documents."""
    rows = []
    for index, shard in enumerate(dataset.all_shards):
        if shard.split != split or (seq_lens and shard.seq_len not in seq_lens):
            continue
        row = 0
        for block in read_blocks(dataset, shard):
            for a, b in zip(block.document_a.tolist(), block.document_b.tolist(), strict=True):
                rows += [
                    (document, shard.seq_len, shard.pass_index, index, row, document == a,
                     document == b)
                    for document in sorted({a, b} & set(ids))
                ]  # fmt: skip
                row += 1
    return rows


def as_rows(found):
    columns = [found.document, found.seq_len, found.pass_index, found.shard, found.row]
    columns += [found.is_a, found.is_b]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def every_document(dataset):
    ids = set()
    for shard in dataset.all_shards:
        for block in read_blocks(dataset, shard):
            ids |= {*block.document_a.tolist(), *block.document_b.tolist()}
    return sorted(ids)


@pytest.mark.parametrize("name", ["buckets", "undealt"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_what_is_found_is_what_a_reading_of_every_block_finds(name, split, request, tmp_path):
    dataset = request.getfixturevalue(name)
    index = open_document_index(dataset, split, str(tmp_path))
    known = every_document(dataset)
    for ids in (known, known[::7], known[:1], [known[3], known[3], 12345678901234567]):
        found = as_rows(index.find(np.array(ids, np.uint64)))
        assert found == read_all(dataset, split, ids)
    assert read_all(dataset, split, known)


def test_no_documents_are_in_no_instances(buckets, tmp_path):
    found = open_document_index(buckets, cache_dir=str(tmp_path)).find(np.zeros(0, np.uint64))
    assert len(found) == 0
    assert found.is_a.dtype == bool
    assert not (tmp_path / "documents").exists()


def test_a_length_alone_can_be_asked_for(buckets, tmp_path):
    ids = [3, 2**63]
    index = open_document_index(buckets, cache_dir=str(tmp_path))
    assert as_rows(index.find(np.array(ids, np.uint64), [2048])) == read_all(
        buckets, "train", ids, [2048]
    )


def test_only_shards_that_can_hold_the_document_are_read(buckets, tmp_path):
    said = []
    index = open_document_index(buckets, "train", str(tmp_path), said.append)
    index.find(np.array([2**63 + 3], np.uint64))
    kept = sorted(path.stem for path in (tmp_path / "documents").glob("*/*.ids"))
    expected = [shard for shard in buckets.all_shards if shard.name.endswith("shard-00002.tar")]
    assert kept == sorted(shard.content_hash for shard in expected if shard.split == "train")
    assert "the documents of 4 shard(s)" in said[0]
    assert str(tmp_path / "documents") in said[0]
    assert len(said) == 2


def test_shards_are_read_once(tmp_path):
    dataset = open_dataset(str(write_buckets(tmp_path / "data", documents_hash="0" * 64)))
    ids = np.array([3, 6, 2**63 + 3], np.uint64)
    said = []
    cache = str(tmp_path / "cache")
    first = as_rows(open_document_index(dataset, "train", cache, said.append).find(ids))
    shutil.rmtree(tmp_path / "data" / "train")
    said.clear()
    assert as_rows(open_document_index(dataset, "train", cache, said.append).find(ids)) == first
    assert said == []
    with pytest.raises(FileNotFoundError, match=r"shard-0000[13].tar"):
        open_document_index(dataset, "train", cache).find(np.array([2**62], np.uint64))


DAMAGES = {
    "cut": lambda data: data[:-9],
    "empty": lambda data: data[:0],
    "foreign": lambda data: b"x" * len(data),
    "flipped": lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_of_the_cache_is_made_anew(buckets, tmp_path, damage):
    ids = np.array([3, 6, 2**63 + 3], np.uint64)
    index = open_document_index(buckets, "train", str(tmp_path))
    expected = as_rows(index.find(ids))
    paths = sorted((tmp_path / "documents").glob("*/*.ids"))
    before = [path.read_bytes() for path in paths]
    for path in paths:
        path.write_bytes(damage(path.read_bytes()))
    assert as_rows(index.find(ids)) == expected
    assert [path.read_bytes() for path in paths] == before


def test_several_may_fill_one_cache_at_once(buckets, tmp_path):
    known = np.array(every_document(buckets), np.uint64)

    def find(_):
        return as_rows(open_document_index(buckets, "train", str(tmp_path)).find(known))

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(find, range(4)))
    assert all(result == results[0] for result in results)
    names = [path.name for path in (tmp_path / "documents").glob("*/*")]
    assert len(names) == 16
    assert all(name.endswith(".ids") for name in names)


def test_a_document_of_another_bucket_is_refused(tmp_path):
    rng = np.random.default_rng(1)
    blocks = [block_of_bucket(rng, bucket, 4) for bucket in (0, 0)]  # both of the first
    shards = {("train", 16, 0, bucket): [blocks[bucket]] for bucket in (0, 1)}
    dataset = open_dataset(
        str(write_dataset(tmp_path / "data", shards, 60, {"documents_hash": "0" * 64}))
    )
    index = open_document_index(dataset, "train", str(tmp_path / "cache"))
    assert len(index.find(blocks[0].document_a[:1]))
    with pytest.raises(ValueError, match=r"shard-00001.tar holds the document 00000000000000"):
        index.find(np.array([2**63], np.uint64))


def test_a_damaged_block_is_refused(tmp_path):
    folder = write_buckets(tmp_path / "data", documents_hash="0" * 64)
    path = folder / "train/L4096/pass-01/shard-00000.tar"
    data = bytearray(path.read_bytes())
    data[1400] ^= 1
    path.write_bytes(data)
    index = open_document_index(open_dataset(str(folder)), "train", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"pass-01/shard-00000.tar block 0: damaged: its crc32"):
        index.find(np.array([3], np.uint64))


def test_a_cache_that_cannot_be_written_is_named(buckets, tmp_path):
    (tmp_path / "file").write_text("")
    index = open_document_index(buckets, "train", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"cache_dir .*/file: Not a directory; give a folder"):
        index.find(np.array([3], np.uint64))


def test_documents_alone_are_decoded():
    data = encode_block(TINY)
    whole = decode_block(data, "here")
    document_a, document_b = decode_documents(data, "here")
    assert document_a.tolist() == whole.document_a.tolist() == [1, 2**64 - 2]
    assert document_b.tolist() == whole.document_b.tolist() == [1, 7]
    with pytest.raises(ValueError, match=r"^here: not an Arrow block"):
        decode_documents(data[:-3], "here")
