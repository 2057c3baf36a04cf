"""Nodes that share no folder: each has a run folder on a disk of its own, checkpoints meet at a URL.

Node a has one rank and node b two. In the second launch b is the first node, which it was not
before.
"""

import dataclasses
import json

import pytest
import yaml

from tests.trainer import test_recovery
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import SIZES
from tests.trainer.two_ranks import run_nodes, run_ranks
from trainer.process.stopping import STOPPED
from trainer.settings import Phase

pytestmark = pytest.mark.engines

STEPS, BATCH, STOP_AFTER = 12, 12, 5
TIMES = {
    "tokens_per_second", "data_wait_share", "model_tflops_per_rank", "mfu", "peak_memory_bytes", "eta_seconds",
    "seconds",
}  # fmt: skip


def rows_of(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if key not in TIMES}
        for row in rows
        if row["split"] == "train"
    ]


def last_checkpoint(where):
    """Name, sizes and hashes."""
    marker = max(where.glob("checkpoints/step-*/COMMITTED"))
    return marker.parent.name, json.loads(marker.read_bytes())["files"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("separate-nodes")
    config = {
        "data": [str(write_tiny_dataset(folder / "data"))],
        "phases": [dataclasses.asdict(Phase(16, BATCH, STEPS, 0.003, warmup_steps=2))],
        "model": {"preset": "tiny", "overrides": SIZES | {"max_position_embeddings": 16}},
        "micro_tokens": 48,
        "output": "",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def pretrain(folder, node, *flags):
    return [
        "pretrain",
        "--config",
        f"{folder}/config.yaml",
        "--output",
        f"{folder}/{node}/run",
        *flags,
    ]


def test_they_train_stop_and_go_on_as_one_node_even_when_they_change_places(folder):
    url = ("--checkpoint.url", f"file://{folder}/url")
    stop = [test_recovery.__file__, "stop", str(STOP_AFTER)]
    alone = run_ranks(["-m", "trainer", *pretrain(folder, "alone")], 3)
    stopped = run_nodes(
        [([*stop, *pretrain(folder, "a", *url)], 1), ([*stop, *pretrain(folder, "b", *url)], 2)]
    )
    assert [each.returncode for each in stopped] == [STOPPED] * 3, stopped[0].stderr
    saved, _ = last_checkpoint(folder / "url")
    step = int(saved.removeprefix("step-"))
    assert STOP_AFTER <= step < STEPS
    assert not list((folder / "b/run/checkpoints").iterdir()), "pieces that were uploaded"
    again = run_nodes(
        [
            (["-m", "trainer", *pretrain(folder, node, *url)], size)
            for node, size in (("b", 2), ("a", 1))
        ]
    )
    assert [each.returncode for each in [*alone, *again]] == [0] * 6, [
        each.stderr for each in [*alone, *again]
    ]
    assert f"continuing after step {step}" in again[0].stderr + again[0].stdout
    assert rows_of(folder / "b/run") == rows_of(folder / "alone/run")
    assert [row["step"] for row in rows_of(folder / "b/run")] == list(range(1, STEPS + 1))
    assert (
        last_checkpoint(folder / "url")
        == last_checkpoint(folder / "alone/run")
        == last_checkpoint(folder / "b/run")
    )
    assert last_checkpoint(folder / "a/run")[0] == saved, "of when it was first"


def test_without_a_url_they_are_refused(folder):
    nodes = [(["-m", "trainer", *pretrain(folder, node)], 1) for node in ("c", "d")]
    found = run_nodes(nodes)
    assert [each.returncode for each in found] == [2, 2]
    assert "does not see the run's folder" in found[0].stderr
    assert "give an --output that all nodes see, or a --checkpoint.url" in found[0].stderr


def test_another_run_in_a_nodes_folder_is_refused_and_kept(folder):
    before = rows_of(folder / "alone/run")
    url = ("--checkpoint.url", f"file://{folder}/other-url")
    found = run_nodes(
        [(["-m", "trainer", *pretrain(folder, node, *url)], 1) for node in ("e", "alone")]
    )
    assert [each.returncode for each in found] == [2, 2]
    assert "which does not see that of rank 0, holds another run (" in found[0].stderr
    assert rows_of(folder / "alone/run") == before
