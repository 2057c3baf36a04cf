"""This process as the only rank, and an object store in its memory."""

import fsspec
import pytest

from trainer.ranks import start_ranks, stop_ranks


@pytest.fixture(scope="module")
def ranks():
    """The one rank of a job without a launcher; its process group is there until the module's last test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            patch.delenv(name, raising=False)
        yield start_ranks()
        stop_ranks()


@pytest.fixture
def bucket():
    """fsspec's file system `memory://`, empty before and after."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()
