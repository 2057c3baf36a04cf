"""docs/architecture.md: every addition it shows is made in a copy of the packages, and run there."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.finetune.tiny_model import write_pretrained
from tests.loaded_python import run_python
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import SIZES, rows_of, write_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()


def test_the_page_names_every_room():
    rows = re.findall(r"^\| (?:`(\w+)/`)? ?\| ?(.*?) ?\|", PAGE, re.MULTILINE)
    package, named = "", set()
    for name, rooms in rows:
        package = name or package
        named |= {ROOT / package / room for room in re.findall(r"`(\w+)`", rooms)}
    files = [*ROOT.glob("pipeline/*/*.py"), *ROOT.glob("trainer/*/*.py")]
    assert named == {file.parent for file in files}


def add(copy, page):
    """Makes the new files and the edits that a part of the page shows."""
    for path, content in re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL):
        (copy / path).write_text(content)
    for path, hunks in re.findall(r"```diff\n--- (\S+)\n(.*?)```", page, re.DOTALL):
        text = (copy / path).read_text()
        for hunk in hunks.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] in " -")
            assert text.count(before) == 1, f"{path} has not this place once:\n{before}"
            text = text.replace(before, "".join(line[1:] for line in lines if line[0] in " +"))
        (copy / path).write_text(text)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the packages with every addition of the page."""
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("tokenizer", "pipeline", "trainer"):
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    add(folder, PAGE)
    return folder


def run(copy, line):
    """What `python LINE` prints, with the copy's packages."""
    ran = run_python(line.split(), cwd=copy, PYTHONPATH=str(copy))
    assert ran.returncode == 0, f"{ran.args}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.mark.processes
def test_a_format_and_a_filter(copy, tmp_path):
    rows = [f"{number}\ta text of {number} and many more words\n" for number in range(6)]
    (tmp_path / "texts.chat").write_text("".join(rows) + "7\tshort\n")
    times = "00:00:01,000 --> 00:00:02,000"
    subtitles = f"1\r\n{times}\r\nA text with\r\n\r\n2\r\n{times}\r\nfour words.\r\n"
    (tmp_path / "film.srt").write_bytes(subtitles.encode())
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ntext\nwords")
    inputs = f"--input {tmp_path}/texts.chat {tmp_path}/film.srt"
    files = f"{inputs} --vocab {tmp_path}/vocab.txt --output {tmp_path}/data"
    flags = "--min_words 3 --workers 1 --seq_lens 16 --max_unknown 1 --max_random_next 1"
    printed = run(copy, f"-m pipeline build {files} {flags}")
    assert "1 file(s) read as chat, such as" in printed
    assert (
        f"read as subtitles, such as {tmp_path}/film.srt, which begins 'A text with four" in printed
    )
    assert "1 of 8 documents have too few words: input 1" in printed
    assert "input: 7 documents of" in printed


@pytest.mark.processes
def test_a_range_of_the_new_setting(copy):
    words = "-m pipeline build --input a --output b --min_words=-1"
    ran = run_python(words.split(), cwd=copy, PYTHONPATH=str(copy))
    assert ran.returncode == 2
    assert "min_words is -1; it must be 0 or more" in ran.stderr


@pytest.mark.processes
def test_a_format_whose_extension_is_refused_is_not_imported(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("tokenizer", "pipeline"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    formats = PAGE.partition("### A format\n")[2].partition("### A filter\n")[0]
    before, mark, _ = formats.partition("```diff\n--- pipeline/documents/kinds.py")
    assert mark
    add(tmp_path, before)
    ran = run_python(
        ["-c", "import pipeline.documents.formats"], cwd=tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert ran.returncode == 1
    assert "the format subtitles detects .srt, which KINDS in kinds.py refuses" in ran.stderr


@pytest.mark.engines
def test_an_optimizer_a_variant_and_a_metric_of_pretraining(copy, tmp_path):
    phase = {"seq_len": 16, "global_batch": 12, "steps": 3, "peak_lr": 1.0, "warmup_steps": 0}
    words = write_config(
        tmp_path / "run",
        write_tiny_dataset(tmp_path / "data", instances=60),
        phases=[phase],
        model={"preset": "tiny", "overrides": SIZES | {"activation": "relu"}},
        optimizer={"name": "momentum"},
        micro_tokens=96,
        precision="fp32",
    )
    run(copy, f"-m trainer {' '.join(words)}")
    rows = rows_of(tmp_path / "run")
    losses = [row["mlm_loss"] for row in rows]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    measured = [*rows, *rows_of(tmp_path / "run", "validation")]
    assert len(measured) == 4
    assert all(0 <= row["mlm_accuracy"] <= row["mlm_top5_accuracy"] <= 1 for row in measured)
    assert any(row["mlm_accuracy"] < row["mlm_top5_accuracy"] for row in measured)
    run(copy, f"-m trainer export {tmp_path}/run --output {tmp_path}/hf")
    assert json.loads((tmp_path / "hf/config.json").read_text())["hidden_act"] == "relu"


@pytest.mark.engines
def test_a_task(copy, tmp_path):
    table = tmp_path / "paws.tsv"
    rows = "1\tthe cat\ta cat\t1\n2\tthe cat\ta dog\t0\n" * 4
    table.write_text(f"id\tsentence1\tsentence2\tlabel\n{rows}")
    model = write_pretrained(tmp_path / "hf")
    files = f"--model {model} --train {table} --validation {table} --output {tmp_path}/paws"
    flags = "--task paws --search_epochs 1 --seq_len 16 --search_global_batch 4"
    run(copy, f"-m trainer finetune {files} {flags}")
    best = json.loads((tmp_path / "paws/results.json").read_text())["best"]
    assert {"accuracy", "f1"} <= best["metrics"]["paws"].keys()


@pytest.mark.processes
def test_a_metric(copy):
    task = (
        "from trainer.finetune.pairs import PairExample\n"
        "from trainer.finetune.settings import FinetuneSettings\n"
        "from trainer.finetune.task import open_task\n"
        "task = open_task(FinetuneSettings(task='classification', model='', train=[],\n"
        "    validation=[], output=''))\n"
        "examples = [PairExample('', str(n), '', (None,), label) for n, label in enumerate('xxxy')]\n"
        "print(task.score(examples, ['x', 'x', 'y', 'y'])['balanced_accuracy'])\n"
    )
    (copy / "score.py").write_text(task)
    assert float(run(copy, "score.py")) == pytest.approx((2 / 3 + 1) / 2)
