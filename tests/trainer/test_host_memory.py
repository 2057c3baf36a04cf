"""Memory of steps is used again, and only when nobody looks at it any more."""

import gc

import numpy as np
import pytest
import torch

from trainer.batches.rows import ALIGNMENT_BYTES, HostMemory


def address(array):
    return array.__array_interface__["data"][0]


def test_columns_lie_side_by_side_in_one_piece():
    ids, types, empty, flags = HostMemory().take(
        [(5, np.uint16), (3, np.int64), (0, np.uint8), (7, np.bool_)]
    )
    assert [each.dtype for each in (ids, types, empty, flags)] == [
        np.uint16,
        np.int64,
        np.uint8,
        np.bool_,
    ]
    assert [len(each) for each in (ids, types, empty, flags)] == [5, 3, 0, 7]
    assert address(types) == address(ids) + ALIGNMENT_BYTES
    assert address(flags) == address(types) + ALIGNMENT_BYTES
    assert not np.shares_memory(ids, types)


def test_a_piece_is_used_again_when_the_last_view_of_it_is_gone():
    memory = HostMemory()
    [first] = memory.take([(1000, np.uint16)])
    where, tensor = address(first), torch.from_numpy(first)[10:20]
    del first
    gc.collect()
    [second] = memory.take([(1000, np.uint16)])
    assert address(second) != where
    second[:] = 1
    tensor[:] = 2
    assert (second == 1).all()
    del tensor
    [third] = memory.take([(900, np.uint16)])
    assert address(third) == where


def test_pieces_that_are_too_small_are_let_go():
    memory = HostMemory()
    del memory.take([(10, np.uint8)])[:]
    [large] = memory.take([(10**7, np.uint8)])
    large[:] = 3
    assert len(large) == 10**7
    assert not memory._free


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a GPU")
def test_pinned_pieces_are_pinned():
    [column] = HostMemory(is_pinned=True).take([(1000, np.uint16)])
    assert torch.from_numpy(column)[5:].is_pinned()
