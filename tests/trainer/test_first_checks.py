"""What needs no torch is answered without it: its import takes seconds."""

import json
import os
import subprocess
import sys

import pytest

from trainer.cli import main
from trainer.finetune.settings import FinetuneSettings
from trainer.first_checks import check_export, check_finetune, check_pretrain
from trainer.inference.settings import ExportSettings
from trainer.settings import Phase, PretrainSettings

PRETRAIN = "pretrain --config bert-tiny --data nowhere --output R"
WITH_DATA = "pretrain --config bert-tiny --data D --output R"
FINETUNE = "finetune --task sst2 --model ./nowhere --train t.tsv --validation t.tsv --output R"
NO_MODEL = "./nowhere: found no folder; expected config.json with model.safetensors"
NO_PAIRS = "no file is there, expected a file of pairs"
NO_DATASET = "nowhere holds no manifest.json"
ANSWERS = {
    PRETRAIN: NO_DATASET,
    f"{PRETRAIN} --peak_lr -1": "peak_lr -1.0 must be above 0",
    f"{PRETRAIN} --model.overrides.hiden_size 3": "hiden_size is unknown; did you mean hidden_size",
    f"{PRETRAIN} --micro_tokens 3": "micro_tokens 3 cannot hold one instance of 128 tokens",
    f"{WITH_DATA} --init_from ./nowhere": NO_MODEL,
    f"{WITH_DATA} --continue_from nowhere@5": "nowhere: found no folder; give the --output of a",
    "forget nowhere --documents t.tsv --output R": "nowhere: found no folder; give the --output of",
    "forget M --documents missing.txt --output R": "missing.txt: there is no such file; give a li",
    "forget M --documents t.tsv --output R": "t.tsv:1: found 'sentence', expected a document's id",
    FINETUNE: NO_MODEL,
    f"{FINETUNE} --task sst": "task 'sst' is unknown; did you mean sst2? the tasks are cola, sst2",
    FINETUNE.replace(
        "--train t.tsv", "--train missing.tsv"
    ): "missing.tsv: found no file; --train names files that",
    f"{FINETUNE} --test missing.tsv": "missing.tsv: found no file; --test names files that",
    f"{FINETUNE} --warmup_fraction 2": "warmup_fraction is 2.0; it is a share of the steps",
    f"{FINETUNE} --search_peak_lr 0": "search_peak_lr is [0.0]; every one must be above 0",
    "predict --model ./nowhere --input t.tsv --output o": NO_MODEL,
    "predict --model ./nowhere --input missing.tsv --output o": "missing.tsv: found no file",
    "export nowhere --output o": "nowhere: found no folder; give the --output of a pretrain",
    "export nowhere@5@mean2 --output o": "nowhere: found no folder; give the --output of",
    "fill-mask --model ./nowhere [MASK]": NO_MODEL,
    "fill-mask --model ./nowhere@4 [MASK]": NO_MODEL,
    "fill-mask --model M --top_k 0 [MASK]": "top_k is 0; it must be at least 1",
    "fill-mask --model M text": "the text has no [MASK]: 'text'; write [MASK] where the model",
    "evaluate --model ./nowhere --data nowhere": NO_DATASET,
    "evaluate --model ./nowhere --data D": NO_MODEL,
    "evaluate --model ./nowhere --pairs missing.jsonl": NO_PAIRS,
    "evaluate --model ./nowhere --pairs missing/*.jsonl": NO_PAIRS,
    "evaluate --model ./nowhere --pairs M": "M: no file is there, expected a file of pairs, a fol",
    "evaluate --model ./nowhere --pairs p*.jsonl": NO_MODEL,
    "evaluate --model M --pairs pairs.jsonl --output D": "D: Is a directory; a folder is where a",
    "evaluate --model M --pairs pairs.jsonl --output t.tsv/o": "t.tsv: Not a directory; a file is",
    "evaluate --model M --pairs pairs.jsonl --output D/../pairs.jsonl": "is a file that is read",
    "evaluate --model M --pairs p*.jsonl --output pairs.jsonl": "pairs.jsonl is a file that is r",
    "evaluate --model M --pairs pairs.jsonl --output pipe": "pipe: is a device or a pipe, and a",
    "evaluate --model M --data D --output M": "M: Is a directory; a folder is where a file is to",
    f"{PRETRAIN} --validation.pairs missing.jsonl": NO_PAIRS,
    "features --model ./nowhere --input t.tsv --output o": NO_MODEL,
    "features --model M --input missing.txt --output o": "missing.txt: found no file; --input",
    "features --model M --input t.tsv --output t.tsv": "--output t.tsv is a file that is read; g",
    "features --model M --input t.tsv --output D": "D: Is a directory; a folder is where a file",
    "features --model M --input t.tsv --output o --layers x": "layers is 'x'; expected numbers",
    "plan --config bert-tiny --data nowhere": NO_DATASET,
    "plan --config bert-tiny --world_size 0": "world_size is 0; it must be at least 1",
    "report nowhere": "nowhere is no folder; give the --output of a pretrain command",
}
PROGRAM = """
import contextlib, io, json, sys
from trainer.cli import main
answers = []
for line in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(line)
    heavy = [name for name in ("torch", "deepspeed", "transformers") if name in sys.modules]
    answers.append([code, said.getvalue(), heavy])
print(json.dumps(answers))
"""


@pytest.mark.processes
def test_what_needs_no_torch_is_answered_without_it(tmp_path):
    (tmp_path / "t.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    (tmp_path / "pairs.jsonl").write_text("{}\n")
    (tmp_path / "D").mkdir()
    (tmp_path / "D/manifest.json").write_text("{}")
    (tmp_path / "M").mkdir()
    os.mkfifo(tmp_path / "pipe")
    lines = json.dumps([line.split() for line in ANSWERS])
    program = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(
        program, check=True, input=lines, cwd=tmp_path, capture_output=True, text=True
    )
    for (line, answer), (code, said, heavy) in zip(
        ANSWERS.items(), json.loads(ran.stdout), strict=True
    ):
        assert (line, code, heavy) == (line, 2, [])
        assert answer in said
        assert said.count("\n") == 1


def test_several_ranks_agree_on_missing_files_after_they_have_joined(monkeypatch):
    """A folder that one node lacks is told by that node's rank, or nobody would."""
    pretrain = PretrainSettings(["nowhere"], "R", [Phase(128, 8, 1, 0.1)], init_from="./nowhere")
    files = {"train": ["missing.tsv"], "validation": ["missing.tsv"], "output": "R"}
    finetune = FinetuneSettings(model="./nowhere", task="sst2", **files)
    for check, settings in ((check_pretrain, pretrain), (check_finetune, finetune)):
        with pytest.raises(FileNotFoundError):
            check(settings)
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_pretrain(pretrain)
    check_finetune(finetune)


def test_what_is_elsewhere_is_left_to_the_command(tmp_path):
    for run in ("s3://bucket/run", "memory://run@5", str(tmp_path)):
        check_export(ExportSettings(run=run, output="o"))
    phases = [Phase(128, 8, 1, 0.1)]
    (tmp_path / "run.json").write_text("{}")
    data = ["s3://bucket/data"]
    # A run that goes on has its weights already.
    check_pretrain(PretrainSettings(data, str(tmp_path), phases, init_from="./nowhere"))
    check_pretrain(PretrainSettings(["nowhere"], "R", phases, follow=True))


def test_a_folder_with_a_sign_of_a_step_in_its_name_is_found(tmp_path, capsys):
    (tmp_path / "a@5").mkdir()
    assert main(["fill-mask", "--model", str(tmp_path / "a@5"), "[MASK]"]) == 2
    assert "run.json" in capsys.readouterr().err
