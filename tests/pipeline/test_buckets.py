"""How many buckets, and which documents are validation."""

import itertools

import numpy as np
import pytest

from pipeline.buckets import MAX_BUCKET_BYTES, choose_num_buckets, choose_validation, plan_buckets


def spread(documents):
    by_prefix = np.full(4096, documents // 4096, np.int64)
    by_prefix[: documents % 4096] += 1
    return by_prefix


@pytest.mark.parametrize(
    ("documents", "total_bytes", "expected"),
    [
        (100_000, 1, 1),
        (100_000, MAX_BUCKET_BYTES, 1),
        (100_000, MAX_BUCKET_BYTES + 1, 2),
        (100_000, 5 * MAX_BUCKET_BYTES, 8),
        (10_000_000, 10_000 * MAX_BUCKET_BYTES, 4096),
        (37, 40 * MAX_BUCKET_BYTES, 1),  # a few long novels: documents, not bytes, limit the buckets
        (200, 40 * MAX_BUCKET_BYTES, 1),
    ],
)
def test_the_smallest_number_that_bounds_memory(documents, total_bytes, expected):
    assert choose_num_buckets(spread(documents), total_bytes, None, "num_buckets") == expected


def test_no_bucket_is_left_with_fewer_than_two_documents():
    by_prefix = np.zeros(4096, np.int64)
    by_prefix[:2000] = 1  # only the lower half of all ids
    assert choose_num_buckets(by_prefix, 100 * MAX_BUCKET_BYTES, None, "num_buckets") == 1


@pytest.mark.parametrize("wanted", [0, 3, 8192])
def test_a_wrong_number_of_buckets_is_refused(wanted):
    with pytest.raises(ValueError, match="power of two"):
        choose_num_buckets(spread(1000), 1, wanted, "num_buckets")
    with pytest.raises(ValueError, match="fewer than 2"):
        choose_num_buckets(spread(3), 1, 4, "num_buckets")
    assert choose_num_buckets(spread(100_000), 1, 16, "num_buckets") == 16


def ids(count):
    return [number.to_bytes(16, "big") for number in range(count)]


@pytest.mark.parametrize(
    ("documents", "tokens_each", "fraction", "expected"),
    [
        (10_000, 100, 0.005, 50),
        (10_000, 100_000, 0.005, 12),  # 1.28 M tokens
        (10_000, 2_000_000, 0.005, 2),
        (100, 100, 0.005, 2),
        (4, 100, 0.9, 2),  # two are left to train on
    ],
)
def test_validation_is_the_lowest_ids(documents, tokens_each, fraction, expected):
    lowest = ids(min(documents, 20_000))
    last = choose_validation(lowest, [tokens_each] * len(lowest), documents, fraction)
    assert last == lowest[expected - 1]


def test_validation_may_hold_more_or_fewer_tokens():
    lowest = ids(10_000)
    found = [choose_validation(lowest, [100_000] * 10_000, 10_000, 0.005, most) for most in (3_000_000, 400_000, 1)]
    assert found == [lowest[29], lowest[3], lowest[1]]


@pytest.mark.parametrize(("documents", "fraction"), [(3, 0.005), (0, 0.005), (1, 0.0)])
def test_too_few_documents(documents, fraction):
    with pytest.raises(ValueError, match=f"holds {documents} distinct document"):
        choose_validation(ids(documents), [1] * documents, documents, fraction)


def test_without_validation():
    assert choose_validation(ids(2), [1, 1], 2, 0.0) is None
    assert [bucket.split for bucket in plan_buckets(2, None)] == ["train", "train"]


def test_ranges_meet_without_gap_or_overlap():
    last_validation = (12345).to_bytes(16, "big")
    buckets = plan_buckets(8, last_validation)
    ends = [(int.from_bytes(bucket.first_id, "big"), int.from_bytes(bucket.last_id, "big")) for bucket in buckets]
    assert ends[0][0] == 0
    assert ends[-1][1] == 2**128 - 1
    assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(ends))
    assert buckets[1].name == "train-00000-of-00008"
