"""`python -m trainer stream`: what every rank would read, in numbers that can be checked by hand."""

import pytest

from pipeline.shards.dataset import open_dataset
from trainer.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_dataset):
    """Two datasets of length 8192; one epoch of the first pass has 120 instances in 15 blocks."""
    path = tmp_path_factory.mktemp("data")
    make_dataset(path / "wiki", ((60, 60), (50, 37)))
    make_dataset(path / "books", ((31,),), seed=1)
    return path


def table(capsys):
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    head = rows.index([])
    return [[word.replace(",", "") for word in row] for row in rows[1:head]], [
        " ".join(row) for row in rows[head + 1 :]
    ]


def test_an_epoch_on_one_rank_is_the_dataset(folder, capsys):
    assert main(["stream", str(folder / "wiki"), "--steps", "0", "--global_batch", "12"]) == 0
    [[rank, instances, tokens, requests, blocks, *_]], totals = table(capsys)
    shards = open_dataset(str(folder / "wiki")).shards("train", 8192, 0)
    assert (rank, instances, tokens) == ("0", "120", str(sum(shard.tokens for shard in shards)))
    assert (requests, blocks) == ("2", "16")  # 60 instances are 7 blocks of 8 and one of 4
    assert totals[0] == "10 steps of 12 instances on 1 rank(s), 1 lanes, length 8192"
    amplification = float(totals[1].split()[2].rstrip(":"))
    assert 0.5 < amplification <= 1.0  # of shards this small a third is headers of the tar file
    assert totals[-1] == f"wiki: 120 instances, {int(tokens):,} tokens, 1.0000 epochs"


def test_ranks_and_mixtures(folder, capsys):
    flags = ["--world_size", "3", "--steps", "5", "--global_batch", "16", "--seq_len", "8192"]
    assert main(["stream", f"w={folder}/wiki:3", f"b={folder}/books", *flags]) == 0
    rows, totals = table(capsys)
    assert [row[:2] for row in rows] == [["0", "25"], ["1", "25"], ["2", "30"]]
    assert all(float(row[4]) > 0 for row in rows)
    assert totals[0].startswith("5 steps of 16 instances on 3 rank(s)")
    assert any(line.startswith("tokens of the fullest rank over the mean: 1.") for line in totals)
    assert any(
        line.startswith("w: 60 instances, ") and line.endswith("0.5000 epochs") for line in totals
    )
    assert any(
        line.startswith("b: 20 instances, ") and line.endswith("0.6452 epochs") for line in totals
    )
    assert "ranks share lanes" in totals[-1]


def test_cache_hits_are_counted(folder, capsys, tmp_path):
    flags = ["--steps", "0", "--global_batch", "12", "--cache_dir", str(tmp_path / "cache")]
    reports = []
    for _ in range(2):
        assert main(["stream", str(folder / "wiki"), *flags]) == 0
        reports.append(next(line for line in table(capsys)[1] if line.startswith("cache: ")))
    cold, warm = ([float(word) for word in line.split() if word[0].isdigit()] for line in reports)
    assert cold[0] == cold[1] == 0
    assert warm[0] == 100
    assert warm[2] == 0


def test_how_data_is_read_is_a_choice(folder, capsys):
    flags = ["--steps", "0", "--global_batch", "12", "--reading.max_read_bytes", "1"]
    assert main(["stream", str(folder / "wiki"), *flags, "--reading.buffer_bytes", "100000"]) == 0
    [[_, instances, _, requests, blocks, *_]], _ = table(capsys)
    assert (instances, requests, blocks) == ("120", "16", "16")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--reading.buffer_bytes", "0"], "reading.buffer_bytes is 0; it must be at least 1"),
        (["--reading.timeout_seconds", "0"], "reading.timeout_seconds is 0.0; it must be above 0"),
        (["--steps", "-1"], "steps is -1; it must be at least 0"),
        (["--world_size", "300"], "global_batch 256 is smaller than world_size 300"),
        (["--seq_len", "64"], "no train instances of seq_len 64; the dataset has train L8192"),
    ],
)
def test_what_does_not_fit(folder, capsys, flags, message):
    assert main(["stream", str(folder / "wiki"), *flags]) == 2
    assert message in capsys.readouterr().err
