"""Typical mistakes of a newcomer: each ends with code 2 and one line that has the cure."""

import gzip
import shlex

import pytest

from pipeline.command_line.program import run_program
from trainer.beambert import COMMANDS

BUILD = "build --input text.jsonl --output data --workers 1"
PRETRAIN = "pretrain --config bert-tiny --data D --output R"
FINETUNE = "finetune --task sst2 --model M --train t.tsv --validation v.tsv --output R"
LOCAL = "expected a folder of this machine: runs are written locally; pretrain uploads checkpoints"
NO_DATASET = "nowhere holds no manifest.json: not a finished dataset; run `python -m pipeline build"
FILES = {
    "text.txt": b"A cat sat. It slept.\n\nA dog ran. It barked.\n",
    "text.jsonl": b'{"text": "A cat sat."}\n{"text": "A dog ran."}\n',
    "bad.jsonl": b'{"text": "A cat."}\n{"body": "A dog."}\n',
    "broken.jsonl": b'{"text": "A cat."\n',
    "zipped.txt": gzip.compress(b"A cat sat.\n", mtime=0),
    "list.yaml": b"- a\n",
    "number.yaml": b"seq_lens: 128\n",
    "words.yaml": b"steps: [many]\n",
    "misspelt.yaml": b"seed: 1\nstepz: [3]\n",
    "file": b"x",
    "empty/.keep": b"",
}
# A command line, and what the one line says.
MISTAKES = [
    ("bulid --input text.txt", "unknown command 'bulid'; did you mean build?"),
    ("train --data D", "unknown command 'train'; did you mean pretrain?"),
    # Flags of a build.
    ("build --input text.txt", "missing: --output; beambert build --help says what it takes"),
    ("build text.txt --output data", "unexpected word 'text.txt'; the command takes only flags"),
    (f"{BUILD} --inputs a", "unknown flag --inputs; did you mean --input?"),
    (f"{BUILD} --input more.txt", "give all its values after one: --input A B"),
    (f"{BUILD} --max_seq_length 128", "unknown flag --max_seq_length; did you mean --seq_lens"),
    (f"{BUILD} --dupe_factor 10", "unknown flag --dupe_factor; did you mean --passes"),
    (f"{BUILD} --do_lower_case", "unknown flag --do_lower_case; did you mean --lower_case?"),
    (f"{BUILD} --vocab_size 30k", "--vocab_size: found '30k', expected a whole number"),
    (f"{BUILD} --seq_lens 128,512", "several values stand apart by spaces"),
    (f"{BUILD} --seq_lens 4", "seq_lens is [4]; it must be one or more lengths, each 8 to 65535"),
    (f"{BUILD} --masked_lm_prob 15", "masked_lm_prob is 15.0; it must be above 0 and below 1"),
    (f"{BUILD} --format txt", "--format: found 'txt', expected one of auto, text, "),
    (f"{BUILD} --num_buckets 3", "num_buckets is 3; it must be a power of two"),
    (f"{BUILD} --filter mine.py", "expected module:function, such as my_filters:keep_prose"),
    (f"{BUILD} --storage_options key=1", 'is not a JSON object such as {"anon": true}'),
    (f"{BUILD} --vocab nofile.txt", "nofile.txt"),
    # Files of settings.
    (f"{BUILD} --config missing.yaml", "no configuration file missing.yaml"),
    (f"{BUILD} --config wikipedia", "did you mean wikipedia-books or wikipedia-en-zh?"),
    (f"{BUILD} --config number.yaml", "number.yaml:1: seq_lens: found '128', expected a list"),
    (f"{BUILD} --config list.yaml", "list.yaml:1: settings: found a list, expected keys and"),
    (f"{PRETRAIN} --config words.yaml", "words.yaml:1: steps[0]: found 'many', expected a whole"),
    (f"{PRETRAIN} --config misspelt.yaml", "misspelt.yaml:2: unknown key stepz; did you mean"),
    # Text.
    ("build --input missing.txt --output data", "missing.txt: found no file; expected a file, a "),
    ("build --input empty --output data", "empty: found no file; expected a file, a folder with"),
    ("build --input file --output data --workers 1", "is one document, and no pairs come of one"),
    ("build --input bad.jsonl --output data --workers 1", "bad.jsonl"),
    ("build --input broken.jsonl --output data --workers 1", "broken.jsonl"),
    ("build --input zipped.txt --output data --workers 1", "zipped.txt"),
    ("build --input text.txt --output file --workers 1", "give a folder that you may write into"),
    # Datasets.
    ("verify nowhere", NO_DATASET),
    ("export-data nowhere --format mds --output o", "found 'mds', expected one of tfrecord, par"),
    # Runs.
    ("pretrain --data D --output R", "missing: phases of a --config file, such as bert-base"),
    ("pretrain --config bert-tiny --data nowhere --output R", NO_DATASET),
    ("pretrain --config bert-tiny --data D --output s3://bucket/run", LOCAL),
    (f"{PRETRAIN} --cache_dir s3://bucket/c", "--cache_dir: found the URL s3://bucket/c, expected"),
    (f"{PRETRAIN} --learning_rate 1e-4", "unknown flag --learning_rate; did you mean --peak_lr"),
    (f"{PRETRAIN} --init_checkpoint c", "unknown flag --init_checkpoint; did you mean --init_from"),
    (f"{PRETRAIN} --num_train_steps 9", "unknown flag --num_train_steps; did you mean --steps?"),
    (f"{PRETRAIN} --save_steps 9", "unknown flag --save_steps; did you mean --checkpoint.interval"),
    (f"{PRETRAIN} --mlm_probability 1", "unknown flag --mlm_probability; did you mean --masking"),
    (f"{PRETRAIN} --precision fp16", "--precision: found 'fp16', expected one of fp32, bf16"),
    (f"{PRETRAIN} --gradient_accumulation_steps 4", "did you mean --micro_tokens?"),
    (f"{PRETRAIN} --optimizer adamw", "keys such as beta1, beta2, "),
    (f"{PRETRAIN} --steps 1e6", "--steps: found '1e6', expected a whole number"),
    (f"{PRETRAIN} --peak_lr 1 2 3", "--peak_lr has 3 values and there are 2 phases"),
    # What comes after.
    (f"{FINETUNE} --num_train_epochs 3", "unknown flag --num_train_epochs; did you mean --search"),
    (f"{FINETUNE} --model_name_or_path m", "flag --model_name_or_path; did you mean --model"),
    (f"{FINETUNE} --peak_lr 3e-5", "unknown flag --peak_lr; did you mean --search_peak_lr"),
    (f"{FINETUNE} --task sst", "task 'sst' is unknown; did you mean sst2? the tasks are"),
    (FINETUNE.replace("--output R", "--output gs://bucket/run"), LOCAL),
    ("doctor --output s3://bucket/run", LOCAL),
    ("export nowhere --output o", "holds no run.json; give the --output of a pretrain command"),
    ("fill-mask --model ./nowhere 'It is [MASK].'", "expected config.json with model.safetensors"),
    ("features --model ./nowhere --input text.txt --output o", "nowhere holds nothing; expected"),
    ("plan --config bert-large --num_gpus 8", "unknown flag --num_gpus; did you mean --world_size"),
    ("plan --config bert-tiny --gpu rtx4090", "--gpu: found 'rtx4090', expected one of v100, "),
]


@pytest.mark.processes
@pytest.mark.parametrize(("line", "said"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_answered_by_one_line_with_the_cure(line, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert run_program("beambert", "Tests.", COMMANDS, shlex.split(line)) == 2
    [message] = capsys.readouterr().err.splitlines()
    assert message.startswith("beambert")
    assert said in message
    assert not (tmp_path / "s3:").exists()
