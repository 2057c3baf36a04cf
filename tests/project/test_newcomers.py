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
    "deep.yaml": b"[" * 5_000,
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
    (f"{BUILD} --vocab ''", "--vocab: found '', expected text or null; is a variable of the shell"),
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
    ("build --input file --output data --workers 1", "is one document, and a dataset needs two"),
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
    ("pretrain --config bert-tiny --data D --output file:/tmp/run", LOCAL),
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
    # Names that launchers, transformers and google-research/bert have.
    (
        f"{PRETRAIN} --num_gpus 8",
        "give it to deepspeed before --module, as in deepspeed --num_gpus",
    ),
    (f"{PRETRAIN} --master_port 29500", "unknown flag --master_port; give it to deepspeed before"),
    (f"{PRETRAIN} --hostfile h", "unknown flag --hostfile; give it to deepspeed before --module"),
    (
        f"{PRETRAIN} --world_size 8",
        "plan takes --world_size; where you train, give it to deepspeed",
    ),
    (f"{PRETRAIN} --gpu h100", "unknown flag --gpu; plan takes --gpu"),
    (f"{PRETRAIN} --plan", "unknown flag --plan; `plan` is a command of its own, which takes the"),
    (
        f"{PRETRAIN} --device cuda",
        "a rank takes the GPU that deepspeed gives it; CUDA_VISIBLE_DEVI",
    ),
    (f"{PRETRAIN} --no_cuda", "CUDA_VISIBLE_DEVICES= trains on the CPU"),
    (f"{PRETRAIN} --num_workers 4", "a thread of each rank reads ahead, and there is nothing to"),
    (f"{PRETRAIN} --dataloader_num_workers 4", "a thread of each rank reads ahead"),
    (f"{PRETRAIN} --resume_from_checkpoint R", "the same command again goes on with its --output"),
    (f"{PRETRAIN} --resume", "the same command again goes on with its --output, and another"),
    (f"{PRETRAIN} --overwrite_output_dir", "and another --output begins anew"),
    (f"{PRETRAIN} --train_file t.txt", "unknown flag --train_file; did you mean --data?"),
    (f"{PRETRAIN} --input_file t.txt", "unknown flag --input_file; did you mean --data?"),
    (
        f"{PRETRAIN} --budget_minutes 9",
        "unknown flag --budget_minutes; did you mean --budget_hours?",
    ),
    (f"{PRETRAIN} --dupe_factor 9", "it was decided when the data were built, by build's --passes"),
    (f"{PRETRAIN} --vocab_file v", "it was decided when the data were built, by build's --vocab"),
    (f"{PRETRAIN} --do_train", "unknown flag --do_train; the command says what is done"),
    (f"{PRETRAIN} --max_steps 9", "unknown flag --max_steps; did you mean --steps?"),
    (
        f"{PRETRAIN} --eval_steps 9",
        "unknown flag --eval_steps; did you mean --validation.interval?",
    ),
    (f"{PRETRAIN} --logging_steps 9", "every step is a row of metrics.jsonl in --output"),
    (f"{PRETRAIN} --save_total_limit 9", "did you mean --checkpoint.keep?"),
    (f"{PRETRAIN} --output_dir R", "unknown flag --output_dir; did you mean --output?"),
    (f"{PRETRAIN} --warmup_ratio 0.1", "unknown flag --warmup_ratio; did you mean --warmup_frac"),
    (
        f"{PRETRAIN} --adam_epsilon 1e-6",
        "unknown flag --adam_epsilon; did you mean --optimizer.eps",
    ),
    (f"{PRETRAIN} --weight_decay 0", "did you mean --optimizer.weight_decay?"),
    (f"{PRETRAIN} --gradient_clipping 1", "did you mean --optimizer.max_grad_norm?"),
    (f"{PRETRAIN} --lr_scheduler_type linear", "did you mean --phases.decay_form?"),
    (
        f"{PRETRAIN} --per_device_train_batch_size 8",
        "did you mean --global_batch or --micro_tokens?",
    ),
    (f"{PRETRAIN} --hidden_size 8", "unknown flag --hidden_size; did you mean --model.overrides?"),
    (f"{PRETRAIN} --gradient_checkpointing", "did you mean --activation_checkpointing?"),
    (f"{PRETRAIN} --bf16", "unknown flag --bf16; did you mean --precision?"),
    (f"{PRETRAIN} --report_to wandb", "unknown flag --report_to; did you mean --wandb?"),
    (f"{PRETRAIN} --top_k 5", "unknown flag --top_k; fill-mask takes --top_k"),
    (
        f"{BUILD} --learning_rate 1e-4",
        "unknown flag --learning_rate; pretrain and plan take --peak_",
    ),
    (f"{BUILD} --num_workers 4", "unknown flag --num_workers; did you mean --workers?"),
    (f"{BUILD} --random_seed 4", "unknown flag --random_seed; did you mean --seed?"),
    (f"{BUILD} --max_predictions_per_seq 4", "did you mean --max_predictions?"),
    (f"{BUILD} --do_whole_word_mask", "did you mean --whole_word_masking?"),
    (f"{BUILD} --vocab_file v", "unknown flag --vocab_file; did you mean --vocab"),
    # Recipes.
    ("pretrain --config bert-bsae --data D --output R", "bert-bsae; did you mean bert-base?"),
    ("pretrain --config bert --data D --output R", "the recipe bert is another command's; did you"),
    ("pretrain --config glue --data D --output R", "another command's; recipes are bert-babylm"),
    (
        f"{BUILD} --config bert-base",
        "the recipe bert-base is another command's; did you mean bert?",
    ),
    ("finetune --config squat", "no configuration file or recipe squat; did you mean squad"),
    (f"{BUILD} --config deep.yaml", "deep.yaml: not YAML of settings: it is nested too deep"),
    # Values.
    (f"{PRETRAIN} --peak_lr -1", "peak_lr -1.0 must be above 0"),
    (f"{PRETRAIN} --micro_tokens 64", "micro_tokens 64 cannot hold one instance of 128 tokens"),
    (f"{PRETRAIN} --masking 0.9", "masking is '0.9'; give static, a share such as 0.15"),
    (f"{PRETRAIN} --epochs 2 --steps 9", "epochs decides the steps; leave steps and budget_hours"),
    (f"{PRETRAIN} --model.overrides.vocab_size 9", "the dataset's vocabulary decides it"),
    (f"{PRETRAIN} --model.overrides.num_layers 1000000", "is 1,000,000; it must be at most 1,024"),
    (
        f"{PRETRAIN} --model.overrides.hiden_size 9",
        "hiden_size is unknown; did you mean hidden_size",
    ),
    (f"{PRETRAIN} --model.overrides.num_heads 3", "128 cannot be shared by"),
    (f"{PRETRAIN} --model.preset huge", "--model.preset: found 'huge', expected one of tiny, mini"),
    (
        f"{PRETRAIN} --zero_stage 3 --optimizer.name lamb",
        "optimizer lamb cannot run under zero_stage",
    ),
    (f"{PRETRAIN} --skip 3", "skip: '3' is not PHASE:START-STOP"),
    (f"{FINETUNE} --search_peak_lr 0", "search_peak_lr is [0.0]; every one must be above 0"),
    (f"{FINETUNE} --warmup_fraction 2", "warmup_fraction is 2.0; it is a share of the steps, in"),
    (f"{FINETUNE} --seq_len 3", "seq_len is 3; it must be at least 5"),
    (FINETUNE, "t.tsv: found no file; --train names files that are there"),
    (f"{FINETUNE} --do_lower_case", "it was decided when the data were built, by build's --lower"),
    (f"{FINETUNE} --train_file t", "unknown flag --train_file; did you mean --train?"),
    (
        f"{FINETUNE} --validation_file t",
        "unknown flag --validation_file; did you mean --validation",
    ),
    (f"{FINETUNE} --per_gpu_train_batch_size 8", "did you mean --search_global_batch"),
    (f"{FINETUNE} --doc_stride 64", "unknown flag --doc_stride; did you mean --squad.stride?"),
    ("predict --model ./nowhere --input missing.tsv --output o", "missing.tsv: found no file"),
    ("fill-mask --model ./nowhere text", "the text has no [MASK]: 'text'; write [MASK] where the"),
    ("fill-mask --model ./nowhere --top_k 0 [MASK]", "top_k is 0; it must be at least 1"),
    (
        "features --model ./nowhere --input text.txt --output o --layers last",
        "numbers separated by",
    ),
    ("features --model ./nowhere --input none.txt --output o", "none.txt: found no file; --input"),
    ("evaluate --model ./nowhere --data nowhere", NO_DATASET),
    ("report nowhere", "is no folder; give the --output of a pretrain command"),
    ("report", "missing: RUNS; beambert report --help says what it takes"),
    ("plan --config bert-tiny --world_size 0", "world_size is 0; it must be at least 1"),
    # What comes after.
    (f"{FINETUNE} --num_train_epochs 3", "unknown flag --num_train_epochs; did you mean --search"),
    (f"{FINETUNE} --model_name_or_path m", "flag --model_name_or_path; did you mean --model"),
    (f"{FINETUNE} --peak_lr 3e-5", "unknown flag --peak_lr; did you mean --search_peak_lr"),
    (f"{FINETUNE} --task sst", "task 'sst' is unknown; did you mean sst2? the tasks are"),
    (FINETUNE.replace("--output R", "--output gs://bucket/run"), LOCAL),
    ("doctor --output s3://bucket/run", LOCAL),
    ("export nowhere --output o", "found no folder; give the --output of a pretrain command"),
    ("fill-mask --model ./nowhere 'It is [MASK].'", "expected config.json with model.safetensors"),
    (
        "features --model ./nowhere --input text.txt --output o",
        "nowhere: found no folder; expected",
    ),
    ("plan --config bert-large --num_gpus 8", "unknown flag --num_gpus; did you mean --world_size"),
    ("plan --config bert-tiny --gpu rtx4090", "--gpu: found 'rtx4090', expected one of v100, "),
]


CASES = [
    pytest.param(line, said, id=line, marks=[pytest.mark.processes] * line.startswith("build"))
    for line, said in MISTAKES
]


@pytest.mark.parametrize(("line", "said"), CASES)
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
