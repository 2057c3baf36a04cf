"""scripts/bench/babylm.py: words, the mean of phenomena, the bill."""

import json
import sys

import pytest
import yaml
import zstandard

from scripts.bench import babylm
from scripts.bench.babylm import (
    SETTINGS,
    Stage,
    check_pairs,
    count_sources,
    count_words,
    describe_run,
    find_end,
    format_price,
    list_stages,
    mean_of_phenomena,
    parse_arguments,
    read_bill,
    refuse_slow_precision,
    run_stage,
    sum_bill,
)
from trainer.process.precision import Device


def test_words_are_counted_across_blocks():
    assert count_words([]) == 0
    assert count_words([b" \n"]) == 0
    assert count_words([b"one two"]) == 2
    assert count_words([b"one t", b"wo thr", b"", b"ee ", b"four", b"\n", b"five"]) == 5
    assert count_words([b"a", b"b", b"c d"]) == 2
    text = " A na\u00efve  caf\u00e9,\tno\n\nmore\u00a0words \u2014 "
    data = text.encode()
    blocks = [data[place : place + 1] for place in range(len(data))]
    assert count_words(blocks) == len(text.split()) == 7


def test_a_track_has_no_more_words_than_it_may(tmp_path):
    (tmp_path / "a.txt").write_text("one two\nthree\n")
    (tmp_path / "b.txt.zst").write_bytes(zstandard.compress(b"four five"))
    sources = [{"name": "plain", "input": ["a.txt"]}, {"name": "packed", "input": ["*.zst"]}]
    config = tmp_path / "data.yaml"
    config.write_text(yaml.safe_dump({"sources": sources}))
    assert count_sources(config, tmp_path, 5) == {"plain": 3, "packed": 2}
    expected = r"data\.yaml: its sources in .* have 5 words, expected at most 4; name fewer files"
    with pytest.raises(ValueError, match=expected):
        count_sources(config, tmp_path, 4)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.txt: found no file"):
        count_sources(config, tmp_path, 5)


def group(name, accuracy, **more):
    return {"linguistics_term": name, "pairs": 1, "accuracy": accuracy} | more


def test_the_score_is_the_mean_of_twelve_phenomena_whatever_their_sizes():
    groups = [group(f"p{number}", 0.5) for number in range(11)] + [group("p11", 0.98)]
    paradigms = [group("p0", 0.0, UID="x"), group("p0", 1.0, UID="y")]
    score, phenomena = mean_of_phenomena({"groups": groups + paradigms})
    assert score == pytest.approx((11 * 50 + 98) / 12)
    assert phenomena["p0"] == 50
    assert phenomena["p11"] == 98
    expected = r"the pairs have 1 phenomena \(p0\), expected BLiMP's 12; give all of its files"
    with pytest.raises(ValueError, match=expected):
        mean_of_phenomena({"groups": groups[:1]})
    with pytest.raises(ValueError, match=r"have 0 phenomena \(none\)"):
        mean_of_phenomena({"groups": []})


def write_pairs(path, phenomena):
    pair = {"sentence_good": "a", "sentence_bad": "b", "UID": "u"}
    rows = [pair | {"linguistics_term": f"p{number}"} for number in range(phenomena)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def test_pairs_that_give_no_score_are_refused_before_a_model_is_trained(tmp_path, monkeypatch):
    check_pairs(write_pairs(tmp_path / "all.jsonl", 12))
    pairs = write_pairs(tmp_path / "some.jsonl", 2)
    words = ["--text", "T", "--work", str(tmp_path / "work"), "--pairs"]
    for given, said in (
        (pairs, r"babylm: the pairs have 2 phenomena \(p0, p1\), expected BLiMP's 12; give all"),
        (str(tmp_path / "gone"), "babylm: .*gone: no file is there, expected a file of pairs"),
    ):
        monkeypatch.setattr(sys, "argv", ["babylm", *words, given])
        with pytest.raises(SystemExit, match=said):
            babylm.main()
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("given", ["s3://bucket/blimp", "hf://datasets/a/b/*.jsonl"])
def test_pairs_may_be_at_a_url(given, monkeypatch, tmp_path):
    track = yaml.safe_load(SETTINGS.read_text())["tracks"]["small"]
    monkeypatch.setattr(sys, "argv", ["babylm", "--text", "T", "--work", "W", "--pairs", given])
    score = list_stages(parse_arguments(), track, tmp_path)[-1].arguments
    assert score[score.index("--pairs") + 1] == given


def test_a_bill_adds_up_every_attempt(tmp_path):
    assert read_bill(tmp_path / "none.jsonl") == []
    begun, stopped, ended = (
        {"stage": "train", "command": "python -m trainer"},
        {"stage": "train", "exit": 143, "cpu_seconds": 20.5},
        {"stage": "train", "exit": 0, "cpu_seconds": 40.0},
    )
    build = [{"stage": "build"}, {"stage": "build", "exit": 0, "cpu_seconds": 7.0}]
    lines = [*build, begun, stopped, begun, ended]
    assert sum_bill(lines) == {"build": 7.0, "train": 60.5}
    assert find_end(lines, "train") == "python -m trainer"
    assert find_end(lines[:4], "train") is None
    for unknown in (lines[:3], [*build, begun, begun, ended]):
        with pytest.raises(ValueError, match=r"an attempt of train was killed and its CPU is not"):
            sum_bill(unknown)


def test_a_price_has_its_machine_and_date():
    price = {"machine": "box", "usd_per_hour": 0.3, "vcpus": 3, "date": "2026-11"}
    assert format_price(300, price) == "0.50 USD (box, 2026-11)"


def test_a_run_is_described_by_all_its_tokens_and_its_last_validation(tmp_path):
    first = {"mlm_loss": 6.0, "mlm_accuracy": 0.1, "unigram_entropy": 6.5}
    last = {"mlm_loss": 4.0, "mlm_accuracy": 0.3, "unigram_entropy": 6.6}
    rows = [
        {"split": "train", "step": 1, "tokens": 70},
        {"split": "validation", "step": 1, **first},
        {"split": "train", "step": 2, "tokens": 30},
        {"split": "validation", "step": 2, **last},
    ]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert describe_run(metrics) == {"steps": 2, "tokens": 100, **last}


@pytest.mark.processes
def test_a_stage_has_its_cpu_in_the_bill_however_it_ends(tmp_path):
    bill = tmp_path / "bill.jsonl"
    run_stage(Stage("build", ["this"]), tmp_path, tmp_path)
    run_stage(Stage("build", ["this"]), tmp_path, tmp_path)
    assert [line.get("exit") for line in read_bill(bill)] == [None, 0], "once is enough"
    assert sum_bill(read_bill(bill))["build"] > 0
    with pytest.raises(ValueError, match=r"build was run as '.* -m this'; give another --work"):
        run_stage(Stage("build", ["this", "--steps", "9"]), tmp_path, tmp_path)
    stopper = "import os, signal, time\nos.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)\n"
    (tmp_path / "stopper.py").write_text(stopper)
    for module, code in ("nothing_of_this_name", 1), ("stopper", -15):
        expected = rf"train ended with {code}; see .*train\.log, and run the command again"
        with pytest.raises(RuntimeError, match=expected):
            run_stage(Stage("train", [module]), tmp_path, tmp_path)
    assert [line.get("exit") for line in read_bill(bill)][3::2] == [1, -15]
    assert find_end(read_bill(bill), "train") is None


def test_a_cpu_that_is_slow_in_bf16_is_refused_with_the_flags_that_help(monkeypatch, tmp_path):
    track = yaml.safe_load(SETTINGS.read_text())["tracks"]["small"]
    monkeypatch.setattr(babylm, "describe_device", lambda _: Device("this CPU", bf16_slowdown=54.0))

    def refuse(train_flags):
        words = ["--text", "T", "--pairs", "P", "--work", "W", "--train_flags", train_flags]
        monkeypatch.setattr(sys, "argv", ["babylm", *words])
        stages = list_stages(parse_arguments(), track, tmp_path)
        refuse_slow_precision(stages[1])

    flags = "--precision fp32 --optimizer.muon_precision fp32"
    expected = f"54 times as slowly in bf16 as in fp32; {flags} is faster; give these flags in"
    with pytest.raises(ValueError, match=expected):
        refuse("")
    refuse(flags)
