"""A whole build on an emulator of Google's store: equal to a local one."""

from itertools import islice

import fsspec
import pytest
import torch

from pipeline.shards.dataset import open_dataset
from trainer.stream.step import StepLoader

pytestmark = pytest.mark.engines

OPTIONS = '{"token": "anon"}'


@pytest.fixture(scope="module")
def built(gcs, corpus, pipeline):
    store = fsspec.filesystem("gs", **gcs)
    for path in corpus.iterdir():
        store.pipe_file(f"corpus/text/{path.name}", path.read_bytes())
    folders = ("--input", "gs://corpus/text", "--output", "gs://corpus/data")
    assert pipeline("build", *folders, "--storage_options", OPTIONS) == 0
    return "gs://corpus/data"


def test_a_build_on_gcs_equals_a_local_one(built, local, gcs, pipeline):
    assert (
        open_dataset(built, gcs).manifest.root_hash == open_dataset(str(local)).manifest.root_hash
    )
    assert pipeline("verify", built, "--storage_options", OPTIONS) == 0


def test_the_trainer_streams_the_same_batches_from_gcs(built, local, gcs):
    def first_ids(dataset):
        sizes = {"rank": 0, "world_size": 1, "global_batch": 16, "micro_tokens": 512, "seed": 3}
        with StepLoader(dataset, "train", 64, **sizes) as loader:
            return [micro.input_ids for step in islice(loader, 3) for micro in step.micro_batches]

    there, here = first_ids(open_dataset(built, gcs)), first_ids(open_dataset(str(local)))
    assert len(there) == len(here) > 3
    assert all(torch.equal(one, other) for one, other in zip(there, here, strict=True))
