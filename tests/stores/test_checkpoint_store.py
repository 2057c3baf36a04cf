"""Checkpoints on a real S3 store: there, and back on a wiped disk."""

import shutil

import fsspec
import pytest
import torch

from tests.trainer.test_uploads import Trained
from trainer.checkpoints.read import load_checkpoint
from trainer.checkpoints.resume import restore_run
from trainer.checkpoints.store import CheckpointStore

pytestmark = pytest.mark.engines

URL = "s3://corpus/checkpointed"


def test_a_run_comes_back_from_s3(ranks, s3, tmp_path):
    trained = Trained(ranks, tmp_path / "run", url=None, keep=2)
    trained.store = trained.saver.store = CheckpointStore(URL, s3)
    trained.save(1, 2, 3)
    expected = trained.weights()
    found = fsspec.filesystem("s3", **s3).find("corpus/checkpointed/checkpoints")
    assert {path.split("/")[3] for path in found} == {
        "newest.json",
        "step-00000002",
        "step-00000003",
    }
    shutil.rmtree(tmp_path / "run")
    again = Trained(ranks, tmp_path / "run", url=None)
    again.store = CheckpointStore(URL, s3)
    restore_run(again.run, again.store)
    load_checkpoint(again.choose(), again.engine, again.optimizer, ranks)
    assert torch.equal(again.weights(), expected)
