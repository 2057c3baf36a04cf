"""Which elements of which file a rank reads, where neither rank's pieces begin or end where the other's do."""

import hashlib
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from pipeline.storage.local import make_durable
from trainer.checkpoints import write
from trainer.checkpoints.read import COMMITTED, _read_fragments
from trainer.checkpoints.write import HostCopies
from trainer.optim.sharded import Fragment

KINDS = ("fp32", "exp_avg")


@pytest.fixture
def checkpoint(tmp_path):
    """Ten elements of w, elements 0 to 5 in one rank's file and 6 to 9 in another's: 100, 101, ... and 200, 201, ..."""
    files, described = {}, {}
    for number, (start, stop) in enumerate([(0, 6), (6, 10)]):
        name = f"fragments-{number:05d}-of-00002.safetensors"
        values = {
            f"{kind}/w": 100.0 * (1 + n) + torch.arange(start, stop) for n, kind in enumerate(KINDS)
        }
        save_file(values, tmp_path / name)
        files[name] = {"w": [start, stop - start]}
        content = (tmp_path / name).read_bytes()
        described[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (tmp_path / COMMITTED).write_text(json.dumps({"files": described}))
    return tmp_path, files


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 10), (0, 6), (2, 5), (2, 8), (4, 10), (6, 10), (7, 9)]
)
def test_a_rank_reads_its_elements_of_every_file(checkpoint, start, stop):
    path, files = checkpoint
    owned = {kind: [torch.zeros(3 + stop - start)] for kind in KINDS}
    piece = Fragment("w", 0, start, stop - start, 0, 3, decays=True)
    optimizer = SimpleNamespace(fragments=[piece], state_names=("exp_avg",), tensors=owned.get)
    _read_fragments(path, files, optimizer)
    assert owned["fp32"][0].tolist() == [0, 0, 0, *range(100 + start, 100 + stop)]
    assert owned["exp_avg"][0].tolist() == [0, 0, 0, *range(200 + start, 200 + stop)]


def test_elements_that_no_file_holds_are_refused(checkpoint):
    path, files = checkpoint
    piece = Fragment("w", 0, 4, 8, 0, 0, decays=True)
    optimizer = SimpleNamespace(
        fragments=[piece], state_names=(), tensors=lambda _: [torch.zeros(8)]
    )
    with pytest.raises(ValueError, match="does not hold all of w; it is of another model"):
        _read_fragments(path, files, optimizer)


def test_copies_take_memory_once():
    copies = HostCopies()
    first = copies.copy("w", torch.arange(4.0))
    assert copies.copy("w", torch.arange(4.0, 8.0)).data_ptr() == first.data_ptr()
    assert first.tolist() == [4, 5, 6, 7]
    assert copies.copy("w", torch.ones(2, 2)).tolist() == [[1, 1], [1, 1]]
    assert copies.copy("w", torch.ones(2, 2, dtype=torch.int64)).dtype == torch.int64


def test_two_ranks_of_a_node_may_remove_one_folder_of_pieces(tmp_path, monkeypatch):
    pieces = tmp_path / "step-00000006.tmp"
    pieces.mkdir()
    (pieces / COMMITTED).touch()

    def after_the_other_rank(path):
        shutil.rmtree(pieces)
        make_durable(path)

    monkeypatch.setattr(write, "make_durable", after_the_other_rank)
    write.remove_folders(pieces)
    assert not pieces.exists()
