"""The report: measures on literal numbers, and a page that is report.json and nothing else."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pipeline.inspect.measure import SAMPLE_BLOCKS, choose_blocks, count_lengths
from pipeline.inspect.summary import (
    REPORT_VERSION,
    find_checks,
    format_report,
    read_report,
    render_page,
)
from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.shards.records import Shard
from pipeline.shards.seal import NOTHING
from tests.pipeline.programs import run, write_texts

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202egnp.exe\u2066\x1b\ud800"
pytestmark = pytest.mark.processes
FIXED = ("--passes", 2, "--seq_lens", 64, "--workers", 1)


def shard(name, instances, seq_len=128):
    return Shard("train", seq_len, 0, name, 1, "", "", "", instances, 1, 1, 0, 1, 0, NOTHING)


@pytest.fixture(scope="module")
def built(tmp_path_factory, texts, vocab_file):
    """A dataset from text with markup, through the whole builder."""
    folder = tmp_path_factory.mktemp("report")
    vocab, script = folder / "vocab.txt", "<script>alert({})</script>"
    vocab.write_text(vocab_file.read_text() + "<\n>\n/\nscript\nalert\n(\n)\n")
    marked = [f"{script.format(1)} {text} {script.format(2)}\u202e." for text in texts]
    write_texts(folder / "in.jsonl", (*marked, marked[0], " "))
    words = ("--input", folder / "in.jsonl", "--output", folder / "data", "--vocab", vocab)
    assert run("build", *words, *FIXED) == 0
    return open_dataset(str(folder / "data"))


@pytest.fixture
def copy(built, tmp_path):
    return Path(shutil.copytree(built.folder.path, tmp_path / "data"))


def test_histograms_count_up_to_their_edges():
    counted = count_lengths(np.array([1, 8, 8, 9, 16, 17, 400]), (8, 16, None))
    assert counted["counts"] == [3, 2, 2]
    assert counted["quantiles"] == {"5%": 1, "50%": 9, "95%": 400}
    assert counted["mean"] == 65.57


def test_sampled_blocks_are_spread_over_all_shards():
    few = choose_blocks([shard("a", 1024), shard("b", 513), shard("c", 1)], 32)
    expected = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0)]
    assert [(each.name, block) for each, block in few] == expected
    many = choose_blocks([shard("a", 512 * 10**6), shard("b", 512 * 10**6)], SAMPLE_BLOCKS)
    assert len(many) == SAMPLE_BLOCKS == 32
    assert [each.name for each, _ in many] == ["a"] * 16 + ["b"] * 16
    assert many[1] == (many[0][0], 62_500)


def test_the_report_measures_what_the_shards_hold(built):
    report = json.loads(built.read_file("report.json"))["dataset"]
    assert report["report_version"] == REPORT_VERSION
    names = ("documents_read", "documents", "dropped_duplicate", "dropped_empty")
    assert [report["counters"][name] for name in names] == [122, 120, 1, 1]
    assert report["sources"]["files"] == 1
    stored = {"documents": 121, "of_documents": 120}  # a copy is stored, and sampled
    assert report["documents"]["sample"] == stored
    assert sum(report["documents"]["document_tokens"]["counts"]) == 121
    train = report["groups"][0]
    shards = [shard for shard in built.all_shards if shard.split == "train"]
    blocks = [block for shard in shards for block in read_blocks(built, shard)]
    lengths = np.concatenate([np.diff(block.offsets) for block in blocks])
    number = {"blocks": len(blocks), "of_blocks": len(blocks), "instances": len(lengths)}
    assert train["sample"] == number
    assert sum(train["lengths"]["counts"]) == train["instances"] == len(lengths)
    assert train["lengths"]["counts"][-1] == np.count_nonzero(lengths > 60)
    assert train["mask_shares"]["mask"] == pytest.approx(0.8, abs=0.05)
    assert sum(train["mask_shares"].values()) == pytest.approx(1)
    assert {each["is_random_next"] for each in train["sample_instances"]} == {False, True}


def poison(value):
    """Hostile text behind every string; keys of settings and counters are hostile too."""
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, list):
        return [poison(each) for each in value]
    return {key: poison(each) for key, each in value.items()} if isinstance(value, dict) else value


def test_the_page_is_the_report_and_text_of_the_data_is_harmless_there(built):
    report = json.loads(built.read_file("report.json"))
    page = built.read_file("report.html").decode()
    assert render_page(report) == page
    assert built.manifest.root_hash in page
    for word in ("<script", "src=", "url(", "@import", "<link", "http:", "https:"):
        assert word not in page
    assert "default-src 'none'" in page
    hostile = poison(report)
    hostile["dataset"]["settings"][HOSTILE] = HOSTILE
    poisoned = render_page(hostile)
    assert {*re.findall(r"<\w+", poisoned)} == {*re.findall(r"<\w+", page)}
    assert not set(poisoned) & set("\u202e\u2066\x1b\ud800")
    assert "⟨U+202E⟩gnp.exe" in poisoned
    poisoned.encode()


def test_report_makes_a_page_anywhere(copy, tmp_path, capsys):
    (copy / "report.html").unlink()
    assert run("report", copy, "--output", tmp_path / "elsewhere.html") == 0
    assert f"page        {tmp_path / 'elsewhere.html'}" in capsys.readouterr().out
    assert not (copy / "report.html").exists()
    assert run("report", copy) == 0
    assert (copy / "report.html").read_bytes() == (tmp_path / "elsewhere.html").read_bytes()
    numbers = json.loads((copy / "report.json").read_text())["dataset"]
    (copy / "report.json").unlink()
    assert run("report", copy) == 0
    assert json.loads((copy / "report.json").read_text()) == {"dataset": numbers}


def test_the_page_has_the_name_and_checks_of_the_dataset(copy, built, tmp_path, capsys):
    page = built.read_file("report.html").decode()
    assert "<title>data — dataset report</title>" in page
    split = "it holds 7 documents of 1,064 tokens, 5.80% of the text; losses on fewer"
    for check, said in (
        ("Documents read are kept", "122 read; 120 kept, 2 dropped"),
        ("Every source is trained on", "1 source(s)"),
        ("Validation split", split),
        ("Coverage", "every one of 120 documents is in exactly one bucket"),
    ):
        assert f'<b>{check}</b> <span class="soft">{said}' in page
    moved = copy.rename(tmp_path / "moved & <b>")
    assert run("report", moved) == 0
    assert "dataset     moved & <b>\n" in capsys.readouterr().out
    assert "<h1>Dataset moved &amp; &lt;b&gt;</h1>" in (moved / "report.html").read_text()
    report = json.loads((moved / "report.json").read_text())
    assert report["dataset"]["name"] == "moved & <b>"
    report["dataset"]["counters"]["documents_read"] = 123
    assert "!</span><span><b>Documents read are kept</b>" in render_page(report)


@pytest.mark.parametrize(
    ("counters", "holds"),
    [
        ({"documents_read": 10, "documents": 8, "dropped_empty": 2}, True),
        ({"documents_read": 9, "documents": 6, "dropped_empty": 3}, True),
        ({"documents_read": 100, "documents": 63, "dropped_empty": 30, "dropped_short": 7}, False),
        ({"documents_read": 10, "documents": 9}, False),
    ],
)
def test_documents_that_are_lost_or_mostly_dropped_are_no_tick(counters, holds):
    others = {"mixture": [], "validation": None, "unknown_rate": 0.0}
    others["coverage"] = {"said": "whole", "is_whole": True}
    check = next(iter(find_checks({"counters": counters, **others})))
    assert (check.what, check.holds) == ("Documents read are kept", holds)
    assert ("more than a third" in check.said) == ("dropped_short" in counters)


def test_a_report_of_another_content_is_not_shown(copy):
    path = copy / "report.json"
    report = json.loads(path.read_text())
    own = report["dataset"]
    path.write_text(json.dumps(report | {"dataset": own | {"root_hash": "0" * 64, "bytes": 1}}))
    assert read_report(open_dataset(str(copy))) == {"dataset": own}
    path.write_text(json.dumps(report | {"dataset": {"root_hash": own["root_hash"]}}))
    assert read_report(open_dataset(str(copy))) == report


def test_without_the_encoded_documents_the_rest_is_shown(copy):
    shutil.rmtree(copy / "tokens")
    (copy / "report.json").unlink()
    (copy / "sources.parquet").unlink()
    report = read_report(open_dataset(str(copy)))
    assert (report["dataset"]["documents"], report["dataset"]["sources"]) == (None, None)
    page = render_page(report)
    assert "Lengths were not measured" in page
    assert "The dataset has no table of sources" in page
    assert "time " not in format_report(report)


def test_a_second_run_keeps_the_times_of_the_build_and_no_page_enters_the_dataset(copy, built):
    before, folder = (copy / "report.json").read_text(), Path(built.folder.path).parent
    words = ("--input", folder / "in.jsonl", "--output", copy, "--vocab", folder / "vocab.txt")
    assert run("build", *words, *FIXED) == 0
    assert (copy / "report.json").read_text() == before
    (copy / "report.html").write_text("changed")
    assert run("verify", copy) == 0
    assert open_dataset(str(copy)).manifest.root_hash == built.manifest.root_hash


def test_dropped_documents_can_be_looked_at(tmp_path, texts, vocab_file, capsys):
    bad = ["no json \u202e", "[1]", '{"text": 7}', *["{"] * 50, '{"text": "\\ud800"}']
    good = [json.dumps({"text": text}) for text in (*texts, texts[0], "\u200b" * 5000, " \u2028 ")]
    source, output = tmp_path / "in.jsonl", tmp_path / "data"
    source.write_text("\n".join([*bad, *good]) + "\n")
    words = ("--input", source, "--output", output, "--vocab", vocab_file)
    assert run("build", *words, *FIXED, "--on_bad_document", "skip") == 0
    numbers = json.loads((output / "report.json").read_text())["dataset"]
    examples = numbers["documents"]["dropped_examples"]
    reasons = Counter(each["reason"] for each in examples)
    dropped = {name for name in numbers["counters"] if name.startswith("dropped_")}
    assert {f"dropped_{reason}" for reason in reasons} == dropped - {"dropped_duplicate"}
    assert (len(reasons), max(reasons.values())) == (4, 3)
    assert max(len(each["text"]) for each in examples) == 200
    assert "⟨U+202E⟩" in (output / "report.html").read_text()
    capsys.readouterr()
    assert run("inspect", output, "--dropped", "true") == 0
    printed = capsys.readouterr().out
    for said in ("duplicate: 1 dropped", f"{source}:1: ", "    no json \\u202e"):
        assert said in printed
    shutil.rmtree(output / "tokens")
    (output / "report.json").unlink()
    assert run("inspect", output, "--dropped", "true") == 0
    said = "no examples: the encoded documents (tokens/), which held them, are gone"
    assert said in capsys.readouterr().out
