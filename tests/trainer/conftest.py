"""An object store in this process's memory."""

import fsspec
import pytest


@pytest.fixture
def bucket():
    """fsspec's file system `memory://`, empty before and after."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()
