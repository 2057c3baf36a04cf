"""docs/migrating.md: each row of its tables is what the command answers, and its commands run on a small text."""

import json
import os
import re
import shlex
import string
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import COMMANDS as PIPELINE
from pipeline.command_line.hints import find_hint
from pipeline.command_line.names import NOT_NEEDED, SAME_HERE
from pipeline.command_line.program import load, run_program
from tests.loaded_python import run_python
from trainer.cli import COMMANDS as TRAINER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/migrating.md").read_text()
COMMANDS = {"build": PIPELINE, "pretrain": TRAINER}
# What makes a command small, by its first words. A command without a row here fails the test.
PHASE = "[{seq_len: 128, global_batch: 4, steps: 1, peak_lr: 1e-4, warmup_steps: 1}]"
SMALLER = {
    "-m pipeline build": ["--passes", "1", "--workers", "1"],
    "-m trainer pretrain": [
        "--phases",
        PHASE,
        "--model.preset",
        "tiny",
        "--validation.num_instances",
        "4",
    ],
    "-m trainer plan": [],
    "-m trainer export": [],
    "-m pipeline export": [],
}


def rows():
    """The command, the other program's flag and ours of each row; ours is empty where there is none."""
    command = ""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or cells[0].startswith("-"):
            continue
        if not cells[0].startswith("`"):
            command = next((name for name in COMMANDS if name in cells[1]), "")
            continue
        own = re.match(r"`(\w+)`: ", cells[1])
        ours = re.findall(r"`([\w.]+)`", cells[1][own.end() if own else 0 :])
        yield own[1] if own else command, cells[0].strip("`"), ours[0] if ours else ""


@pytest.mark.processes
@pytest.mark.parametrize(("command", "theirs", "ours"), [*rows()])
def test_a_flag_of_another_program_is_answered(command, theirs, ours, capsys):
    program = COMMANDS[command]
    if theirs == ours:
        assert find_hint(load(program[command].settings), ours) is not None
        return
    assert run_program("program", "Tests.", program, [command, f"--{theirs}", "1"]) == 2
    said = capsys.readouterr().err
    if ours:
        assert re.fullmatch(
            rf"program {command}: error: --{theirs} is --{re.escape(ours)} here\n", said
        )
    else:
        assert re.match(rf"program {command}: error: --{theirs} is not (needed|there): ", said)


GOOGLES_DEVICES = "use_tpu tpu_name tpu_zone gcp_project master num_tpu_cores"
GOOGLES_MODEL = "bert_config_file init_checkpoint vocab_file do_lower_case max_seq_length"
FLAGS = {
    "create_pretraining_data": (
        "build",
        "input_file output_file vocab_file do_lower_case do_whole_word_mask max_seq_length"
        " max_predictions_per_seq random_seed dupe_factor masked_lm_prob short_seq_prob",
    ),
    "run_pretraining": (
        "pretrain",
        "bert_config_file input_file output_dir init_checkpoint max_seq_length"
        " max_predictions_per_seq do_train do_eval train_batch_size eval_batch_size learning_rate"
        " num_train_steps num_warmup_steps save_checkpoints_steps iterations_per_loop"
        f" max_eval_steps {GOOGLES_DEVICES}",
    ),
    "run_classifier": (
        "finetune",
        f"{GOOGLES_MODEL} data_dir task_name output_dir do_train do_eval do_predict"
        " train_batch_size eval_batch_size predict_batch_size learning_rate num_train_epochs"
        f" warmup_proportion save_checkpoints_steps iterations_per_loop {GOOGLES_DEVICES}",
    ),
    "run_squad": (
        "finetune",
        f"{GOOGLES_MODEL} output_dir train_file predict_file doc_stride max_query_length do_train"
        " do_predict train_batch_size predict_batch_size learning_rate num_train_epochs"
        " warmup_proportion save_checkpoints_steps iterations_per_loop n_best_size"
        " max_answer_length verbose_logging version_2_with_negative null_score_diff_threshold"
        f" {GOOGLES_DEVICES}",
    ),
    "run_classifier and run_squad with do_predict": (
        "predict",
        f"{GOOGLES_MODEL} task_name predict_file output_dir do_predict predict_batch_size"
        f" doc_stride version_2_with_negative null_score_diff_threshold {GOOGLES_DEVICES}",
    ),
    "extract_features": (
        "features",
        f"{GOOGLES_MODEL} input_file output_file layers batch_size use_tpu master num_tpu_cores"
        " use_one_hot_embeddings",
    ),
    "run_mlm's data": (
        "build",
        "dataset_name dataset_config_name train_file validation_file overwrite_cache"
        " validation_split_percentage max_seq_length preprocessing_num_workers mlm_probability"
        " line_by_line pad_to_max_length max_train_samples max_eval_samples streaming"
        " tokenizer_name use_fast_tokenizer",
    ),
    "run_mlm's model and Trainer": (
        "pretrain",
        "model_name_or_path model_type config_overrides config_name tokenizer_name"
        " use_fast_tokenizer model_revision token trust_remote_code dtype low_cpu_mem_usage"
        " output_dir overwrite_output_dir do_train do_eval do_predict eval_strategy"
        " per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps"
        " learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm"
        " num_train_epochs max_steps lr_scheduler_type warmup_ratio warmup_steps logging_dir"
        " logging_steps logging_strategy save_strategy save_steps save_total_limit seed data_seed"
        " bf16 fp16 tf32 local_rank dataloader_num_workers dataloader_drop_last eval_steps run_name"
        " report_to deepspeed optim gradient_checkpointing torch_compile push_to_hub hub_model_id"
        " hub_token resume_from_checkpoint load_best_model_at_end metric_for_best_model"
        " label_smoothing_factor group_by_length remove_unused_columns"
        " ddp_find_unused_parameters use_cpu disable_tqdm",
    ),
    "run_glue and Trainer": (
        "finetune",
        "task_name dataset_name train_file validation_file test_file max_seq_length"
        " pad_to_max_length model_name_or_path config_name tokenizer_name ignore_mismatched_sizes"
        " output_dir overwrite_output_dir do_train do_eval do_predict per_device_train_batch_size"
        " per_device_eval_batch_size gradient_accumulation_steps learning_rate weight_decay"
        " num_train_epochs warmup_ratio seed fp16 bf16 save_steps logging_steps",
    ),
    "NVIDIA's preprocess_bert_pretrain": (
        "build",
        "wikipedia books common-crawl sink target-seq-length vocab-file wikipedia-lang num-blocks"
        " sample-ratio bin-size masking duplicate-factor local-n-workers masked-lm-ratio seed",
    ),
    "NVIDIA's run_pretraining": (
        "pretrain",
        "input_dir config_file output_dir init_checkpoint max_seq_length max_predictions_per_seq"
        " train_batch_size learning_rate max_steps warmup_proportion gradient_accumulation_steps"
        " allreduce_post_accumulation allreduce_post_accumulation_fp16 fp16 amp loss_scale log_freq"
        " checkpoint_activations resume_from_checkpoint resume_step num_steps_per_checkpoint"
        " phase2 phase1_end_step steps_this_run do_train json-summary disable_progress_bar",
    ),
    "MosaicML's YAML": (
        "pretrain",
        "max_duration max_seq_len global_train_batch_size device_train_microbatch_size"
        " device_eval_batch_size save_interval save_num_checkpoints_to_keep save_folder"
        " eval_interval autoresume load_path seed precision",
    ),
}


@pytest.mark.processes
@pytest.mark.parametrize("program", FLAGS)
def test_every_flag_of_a_program_is_answered_at_once(program, capsys):
    command, flags = FLAGS[program]
    commands = PIPELINE if command == "build" else TRAINER
    settings = load(commands[command].settings)
    unknown = [flag for flag in flags.split() if find_hint(settings, flag) is None]
    words = [word for flag in unknown for word in (f"--{flag}", "1")]
    assert run_program("program", "Tests.", commands, [command, *words]) == 2
    said = capsys.readouterr().err.removeprefix(f"program {command}: error: ").splitlines()
    for flag, line in zip(unknown, said, strict=True):
        assert re.match(rf"--{flag} is (--[\w.]+ here$|not (needed|there): )", line), line


@pytest.mark.processes
def test_a_key_of_a_file_is_answered_too(capsys, tmp_path):
    file = tmp_path / "theirs.yaml"
    file.write_text("dupe_factor: 10\n")
    assert run_program("program", "Tests.", PIPELINE, ["build", "--config", str(file)]) == 2
    assert (
        capsys.readouterr().err == f"program build: error: {file}:1: dupe_factor is passes here\n"
    )


def test_every_name_that_is_answered_leads_somewhere():
    settings = [
        load(command.settings) for program in (PIPELINE, TRAINER) for command in program.values()
    ]
    for name, answers in SAME_HERE.items():
        for answer in answers:
            assert any(find_hint(each, answer) is not None for each in settings), (
                f"{name} is {answer}"
            )
    assert all(reason.startswith("is not ") for reason in NOT_NEEDED.values())


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with a text as google-research/bert reads it, a vocabulary, and my-text/."""
    folder = tmp_path_factory.mktemp("migrating")
    texts = [
        [f"The {i} brown foxes jumped.", f"Then {i * 7} lazy dogs slept on."] for i in range(60)
    ]
    (folder / "sample_text.txt").write_text("\n\n".join("\n".join(text) for text in texts) + "\n")
    letters = string.ascii_lowercase + string.digits + "."
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{letter}" for letter in letters),
    ]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    (folder / "my-text").mkdir()
    lines = (json.dumps({"text": "\n".join(text)}) for text in texts)
    (folder / "my-text/a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.engines
def test_the_commands_run_in_order(workplace):
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for line in "".join(blocks).splitlines() if line]
    assert len(lines) == 10
    for line in lines:
        start = next((start for start in SMALLER if line.startswith(f"python {start} ")), None)
        assert start is not None, f"a page has a command that no test runs: {line}"
        words = [*shlex.split(line)[1:], *SMALLER[start]]
        if start == "-m pipeline build":
            words += [] if "--vocab" in words else ["--vocab_size", "200"]
            ran = subprocess.run(
                [sys.executable, *words],
                cwd=workplace,
                env=os.environ,
                capture_output=True,
                text=True,
                check=False,
            )
        else:
            ran = run_python(words, cwd=workplace)
        assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr}"
    assert (workplace / "hf-model/model.safetensors").exists()
    assert (workplace / "google/manifest.json").exists()
    assert (workplace / "google-tfrecord/_export.json").exists()
    assert (workplace / "hf-parquet/_export.json").exists()
    assert (workplace / "mosaic/manifest.json").exists()
