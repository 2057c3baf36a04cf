"""How many buckets there are, and which ids one holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tokens.buckets import MAX_BUCKET_BYTES, num_prefixes, plan_buckets, prefix_of
from pipeline.tokens.buckets import choose_num_buckets as choose


def spread(documents, prefixes=4096):
    by_prefix = np.full(prefixes, documents // prefixes, np.int64)
    by_prefix[: documents % prefixes] += 1
    return by_prefix


@pytest.mark.parametrize(
    ("documents", "total_bytes", "expected"),
    [
        (100_000, 1, 1),
        (100_000, 134_217_728, 1),  # 128 MiB
        (100_000, 134_217_729, 2),
        (100_000, 5 * MAX_BUCKET_BYTES, 8),
        (10_000_000, 10_000 * MAX_BUCKET_BYTES, 4096),
        (37, 40 * MAX_BUCKET_BYTES, 1),  # a few long novels: documents limit the buckets
        (200, 40 * MAX_BUCKET_BYTES, 1),
    ],
)
def test_the_smallest_number_that_bounds_memory(documents, total_bytes, expected):
    assert choose(spread(documents), total_bytes, None, "num_buckets") == expected


@pytest.mark.parametrize(
    ("total_bytes", "expected"),
    [
        (2**39, 4096),
        (2**39 + 1, 8192),
        (10**12, 8192),
        (5 * 10**12, 65_536),
        (8 * 10**12, 65_536),
        (10**14, 65_536),
    ],
)
def test_large_corpora_have_more_buckets_than_4096(total_bytes, expected):
    assert num_prefixes(total_bytes) == 65_536
    assert choose(spread(2 * 10**9, 65_536), total_bytes, None, "num_buckets") == expected


@given(st.integers(1, 300 * 2**30), st.integers(2, 10**7))
def test_finer_counts_change_no_number_of_buckets_that_was_possible_before(total_bytes, documents):
    fine = spread(documents, 65_536)
    coarse = fine.reshape(4096, 16).sum(axis=1)
    found = [choose(each, total_bytes, None, "num_buckets") for each in (fine, coarse)]
    assert found[0] == found[1] <= 4096


def test_counts_are_coarse_up_to_256_gib():
    sizes = (0, 256 * 2**30, 256 * 2**30 + 1)
    assert list(map(num_prefixes, sizes)) == [4096, 4096, 65_536]
    assert prefix_of(bytes.fromhex("abcdef") + bytes(13)) == 0xABC
    assert prefix_of(bytes.fromhex("abcdef") + bytes(13), 65_536) == 0xABCD


def test_no_bucket_is_left_with_fewer_than_two_documents():
    by_prefix = np.zeros(4096, np.int64)
    by_prefix[:2000] = 1  # only the lower half of all ids
    assert choose(by_prefix, 100 * MAX_BUCKET_BYTES, None, "num_buckets") == 1


@pytest.mark.parametrize("wanted", [0, 3, 8192])
def test_a_wrong_number_of_buckets_is_refused(wanted):
    with pytest.raises(ValueError, match="power of two"):
        choose(spread(1000), 1, wanted, "num_buckets")
    with pytest.raises(ValueError, match="fewer than 2"):
        choose(spread(3), 1, 4, "num_buckets")
    assert choose(spread(100_000), 1, 16, "num_buckets") == 16


def test_ranges_meet_without_gap_or_overlap():
    held_out = [number.to_bytes(16, "big") for number in (12345, 12346, 2**127)]
    validation, *buckets = plan_buckets(8, b"".join(held_out))
    assert validation.name == "validation-00000-of-00001"
    assert (validation.first_id, validation.last_id) == (held_out[0], held_out[2])
    firsts = [int.from_bytes(bucket.first_id, "big") for bucket in buckets]
    after = [int.from_bytes(bucket.last_id, "big") + 1 for bucket in buckets]
    assert [*firsts, 2**128] == [0, *after]
    assert buckets[0].name == "train-00000-of-00008"
    assert [bucket.split for bucket in plan_buckets(2, b"")] == ["train", "train"]
