"""A whole build on an emulator of Google's store: equal to a local one."""

import fsspec
import pytest

from pipeline.shards.dataset import open_dataset
from tests.stores.conftest import assert_same_batches, root_hash

pytestmark = pytest.mark.engines


def test_a_build_on_gcs_equals_a_local_one_and_is_streamed(local, gcs, corpus, pipeline):
    store = fsspec.filesystem("gs", **gcs)
    for path in corpus.iterdir():
        store.pipe_file(f"corpus/text/{path.name}", path.read_bytes())
    options = ("--storage_options", '{"token": "anon"}')
    folders = ("--input", "gs://corpus/text", "--output", "gs://corpus/data")
    assert pipeline("build", *folders, *options) == 0
    assert root_hash("gs://corpus/data", gcs) == root_hash(local)
    assert pipeline("verify", "gs://corpus/data", *options) == 0
    assert_same_batches(open_dataset("gs://corpus/data", gcs), open_dataset(str(local)))
