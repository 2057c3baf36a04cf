"""scripts/bench/speedrun.py: which lines an arm gets, and the board."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.bench import speedrun

ARM = {"kind": "arm", "arm": "recipe", "share": 0.5, "seed": 0, "steps": [100, 20]}
SCORE = {"score": 59.7, "standard_error": 0.21, "num_pairs": 67_000, "phenomena": {}}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The command line's values; what would be started is noted in `started`."""
    own = SimpleNamespace(
        work=str(tmp_path / "work"), config="configs/pretrain/bert-tiny-hour.yaml", share=0.5,
        pairs=None, started=[],
    )  # fmt: skip

    def pretrain(own, name, arm, steps, *flags):
        own.started.append(("train", name, steps, flags))
        write_run(own, name)
        return {"mlm_loss": 4.0, "mlm_accuracy": 0.3, "split": "validation"}, [0.9, 1.0]

    def score_run(own, name):
        own.started.append(("score", name))
        return SCORE

    monkeypatch.setattr(speedrun, "RESULTS", tmp_path / "speedrun.jsonl")
    monkeypatch.setattr(speedrun, "pretrain", pretrain)
    monkeypatch.setattr(speedrun, "score_run", score_run)
    return own


def write_run(own, name, saved=4750):
    folder = Path(own.work, name)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / f"checkpoints/step-{saved:08d}").mkdir(parents=True)
    (folder / f"checkpoints/step-{saved:08d}/COMMITTED").touch()
    rows = (
        {"step": saved, "split": "train"},
        {"step": saved, "split": "validation", "mlm_loss": 4.0},
    )
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def lines():
    rows = [json.loads(line) for line in speedrun.RESULTS.read_text().splitlines()]
    return [(row["kind"], row["seed"], row["mlm_loss"], row.get("score")) for row in rows]


def test_an_arm_is_trained_and_scored_once(own):
    trained = ("train", "recipe-0.5-0", [4000, 750], ("--seed", "0"))
    speedrun.run_arm(own, "recipe", 0)
    speedrun.run_arm(own, "recipe", 0)
    assert own.started == [trained]
    assert lines() == [("arm", 0, 4.0, None)]
    own.pairs = "blimp"
    speedrun.run_arm(own, "recipe", 0)
    speedrun.run_arm(own, "recipe", 0)
    assert own.started == [trained, ("score", "recipe-0.5-0")], "the run is still there"
    assert lines() == [("arm", 0, 4.0, None), ("pairs", 0, 4.0, 59.7)]


def test_a_new_arm_gets_both_lines_from_one_run(own):
    own.pairs = "blimp"
    speedrun.run_arm(own, "recipe", 1)
    assert [what for what, *_ in own.started] == ["train", "score"]
    assert lines() == [("arm", 1, 4.0, None), ("pairs", 1, 4.0, 59.7)]


@pytest.mark.parametrize("saved", [None, 4000], ids=["gone", "not at its end"])
def test_an_arm_whose_run_is_not_there_is_trained_again_to_be_scored(own, saved):
    speedrun.add_row(ARM | {"mlm_loss": 3.9})
    if saved:
        write_run(own, "recipe-0.5-0", saved)
    own.pairs = "blimp"
    speedrun.run_arm(own, "recipe", 0)
    assert [what for what, *_ in own.started] == ["train", "score"]
    assert lines() == [("arm", 0, 3.9, None), ("pairs", 0, 4.0, 59.7)]


def test_the_board_has_loss_cost_and_score(own):
    for seed, loss in enumerate((3.8, 3.9)):
        speedrun.add_row(ARM | {"seed": seed, "mlm_loss": loss})
    speedrun.add_row(ARM | {"arm": "half", "mlm_loss": 3.7})
    speedrun.add_row({"kind": "clock", "arm": "recipe", "a_step": [0.9, 1.5]})
    key = {"kind": "pairs", "arm": "recipe", "share": 0.5}
    speedrun.add_row(key | {"seed": 0, "score": 58.0, "standard_error": 0.2})
    assert speedrun.format_board().splitlines() == [
        "| share | arm | seeds | nats | p against the best | CPU-minutes | BLiMP |",
        "|---|---|---|---|---|---|---|",
        "| 0.5 | half | 1 | 3.700 | - | - | - |",
        "| 0.5 | recipe | 2 | 3.850 | - | 2.0 | 58.0 +- 0.2 |",
    ]
    speedrun.add_row(key | {"seed": 1, "score": 60.0, "standard_error": 0.4})
    assert speedrun.format_board().endswith("| 2.0 | 59.0 +- 0.3 (2 seeds) |")


def test_what_is_wrong_is_a_line_before_anything_is_trained(own, tmp_path, monkeypatch):
    dataset = SimpleNamespace(manifest=SimpleNamespace(root_hash=speedrun.ROOT_HASH))
    monkeypatch.setattr(speedrun, "open_dataset", lambda _: dataset)
    words = ["--data", "D", "--work", "W", "--arms", "recipe", "--pairs", str(tmp_path / "gone")]
    monkeypatch.setattr(sys, "argv", ["speedrun", *words])
    with pytest.raises(SystemExit, match=r"speedrun: .*gone: no file is there, expected a file of"):
        speedrun.main()
    dataset.manifest.root_hash = "other"
    with pytest.raises(SystemExit, match="speedrun: D has the root hash other, expected "):
        speedrun.main()
    assert own.started == []
