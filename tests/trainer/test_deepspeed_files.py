"""Files for DeepSpeed as people have them, written anew by their keys: what a run makes of each."""

import dataclasses
import json
import re

import pytest

from pipeline.command_line.program import parse_settings
from trainer.cli import COMMANDS
from trainer.engine.deepspeed_config import deepspeed_config, read_deepspeed_file
from trainer.settings import resolve

AUTO = "auto"
BATCHES = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), AUTO
)
FP16 = {"loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1}
ADAMW = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), AUTO)}
WARMUP = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), AUTO)
STAGE2 = {"stage": 2, "allgather_partitions": True, "reduce_bucket_size": 2e8, "overlap_comm": True}
STAGE3 = {
    "stage": 3, "contiguous_gradients": True, "sub_group_size": 1e9, "reduce_bucket_size": AUTO,
    "stage3_prefetch_bucket_size": AUTO, "stage3_max_live_parameters": 1e9,
    "stage3_gather_16bit_weights_on_model_save": True,
}  # fmt: skip
CPU = {"device": "cpu", "pin_memory": True}
LINEAR = {"warmup_max_lr": 1e-3, "warmup_num_steps": 2, "warmup_type": "linear"}

# Whose file it is like -> the file, and what the run takes from it.
FILES = {
    "transformers, stage 2": (
        {"fp16": {"enabled": AUTO, **FP16}, "bf16": {"enabled": AUTO}, "optimizer": ADAMW,
         "scheduler": {"type": "WarmupLR", "params": WARMUP}, "zero_optimization": STAGE2,
         "gradient_clipping": AUTO, "steps_per_print": 2000, **BATCHES},
        {"zero_stage": 2},
    ),
    "accelerate, stage 3 without offloading": (
        {"zero_optimization": {**STAGE3, "offload_param": {"device": "none"}},
         "gradient_clipping": 0.5, "bf16": {"enabled": True}, **BATCHES},
        {"zero_stage": 3, "optimizer.max_grad_norm": 0.5, "precision": "bf16"},
    ),
    "DeepSpeedExamples, bing_bert": (
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 16, "prescale_gradients": False,
         "optimizer": {"type": "Adam", "params": {"lr": 4e-4, "weight_decay": 0.02,
                                                  "bias_correction": False}},
         "gradient_clipping": 1.0, "fp16": {"enabled": False, "loss_scale": 0}},
        {"global_batch": 64, "micro_tokens": 16 * 32, "peak_lr": 4e-4,
         "optimizer.weight_decay": 0.02, "optimizer.bias_correction": False},
    ),
    "DeepSpeedExamples, LAMB": (
        {"train_batch_size": 32, "bf16": {"enabled": True},
         "optimizer": {"type": "Lamb", "params": {"lr": 0.002, "betas": [0.9, 0.99], "eps": 1e-8}}},
        {"optimizer.name": "lamb", "optimizer.beta2": 0.99, "optimizer.eps": 1e-8,
         "peak_lr": 0.002, "global_batch": 32, "precision": "bf16"},
    ),
    "DeepSpeed's Muon by the rate of its AdamW": (
        {"optimizer": {"type": "Muon", "params": {"adam_lr": 1e-3, "momentum": 0.95}}},
        {"optimizer.name": "muon", "peak_lr": 1e-3},
    ),
    "DeepSpeedExamples, cifar": (
        {"train_batch_size": 16, "scheduler": {"type": "WarmupLR", "params": LINEAR},
         "zero_optimization": {"stage": 0},
         "optimizer": {"type": "adam", "params": {"lr": 1e-3, "betas": [0.8, 0.999]}}},
        {"global_batch": 16, "zero_stage": 0, "warmup_steps": 2, "decay_power": 0.0,
         "peak_lr": 1e-3, "optimizer.beta1": 0.8},
    ),
    "a linear decay": (
        {"scheduler": {"type": "WarmupDecayLR", "params": {**LINEAR, "total_num_steps": 6}}},
        {"steps": 6, "warmup_steps": 2, "decay_power": 1.0, "peak_lr": 1e-3},
    ),
    "Megatron-DeepSpeed": (
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
         "gradient_accumulation_steps": 8, "bf16": {"enabled": True}, "sparse_gradients": False,
         "zero_optimization": {"stage": 1, "elastic_checkpoint": True, "cpu_offload": False},
         "activation_checkpointing": {"partition_activations": False, "profile": False},
         "data_types": {"grad_accum_dtype": "fp32"}},
        {"global_batch": 64, "micro_tokens": 4 * 32, "zero_stage": 1, "precision": "bf16"},
    ),
}  # fmt: skip
NO_PLACE = "which has no place here:"
REFUSED = [
    ({"zero_optimization": {**STAGE3, "offload_optimizer": CPU}},
     f"zero_optimization.offload_optimizer, {NO_PLACE} what ZeRO partitions stays"),
    ({"fp16": {"enabled": True}}, f"fp16, {NO_PLACE} there is no loss scaling, use bf16"),
    ({"optimizer": {"type": "Lamb", "params": {"lr": 0.002, "max_coeff": 0.3}}},
     "optimizer.params.max_coeff is 0.3; Lamb has no such setting here"),
    ({"optimizer": {"type": "Muon", "params": {"lr": 0.02, "momentum": 0.95}}},
     "optimizer.params.lr is 0.02; Muon has no such setting here: Muon's updates have AdamW's"),
    ({"optimizer": {"type": "Muon", "params": {"momentum": 0.9}}},
     "optimizer.params.momentum is 0.9; Muon has no such setting here"),
    ({"optimizer": {"type": "OneBitAdam", "params": {"lr": 4e-4, "freeze_step": 23000}}},
     "optimizer.type is OneBitAdam; choose AdamW, Adam, Lamb"),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}},
     "scheduler.params.warmup_type is log, as where it is unsaid"),
    ({"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 9}}},
     "scheduler.type is WarmupCosineLR; choose WarmupLR, WarmupDecayLR"),
    ({"data_efficiency": {"enabled": True}, "curriculum_learning": {"enabled": True}},
     f"curriculum_learning, {NO_PLACE} the dataset decides which instance comes"),
    ({"tensorboard": {"enabled": True}},
     f"tensorboard, {NO_PLACE} TensorBoard's curves are written"),
    ({"zero_optimization": {"stage": 2, "reduce_bucket": 5e8}},
     f"zero_optimization.reduce_bucket, {NO_PLACE} no such key is known"),
    ([], "expected the settings"),
    ({"zero_optimization": 3}, "expected the settings"),
    (dict(zip(BATCHES, (9, 2, 2), strict=True)), "are 8; leave"),
]  # fmt: skip
OF_PHASES = ("global_batch", "peak_lr", "steps", "warmup_steps", "decay_power")


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """parse(file, phase, *flags): the settings of a pretrain command with a recipe of one phase."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    file, recipe = tmp_path / "ds_config.json", tmp_path / "recipe.yaml"

    def call(said, phase, *flags):
        file.write_text(json.dumps(said))
        recipe.write_text(json.dumps({"phases": [{"seq_len": 32, **phase}]}))
        words = ["--config", str(recipe), "--data", "d", "--output", "o", "--deepspeed", str(file)]
        return resolve(parse_settings("pretrain", COMMANDS["pretrain"], [*words, *flags]))

    return call


def value_of(settings, key):
    for name in key.split("."):
        settings = getattr(settings.phases[0] if name in OF_PHASES else settings, name)
    return settings


@pytest.mark.parametrize("name", FILES)
def test_files_as_people_have_them(name, parse):
    said, expected = FILES[name]
    # What no file says, the recipe or the defaults do.
    phase = {"global_batch": 8, "peak_lr": 0.01, "steps": 4, "warmup_steps": 1, "decay_power": 0.5}
    settings = parse(said, {key: phase[key] for key in phase if key not in expected})
    assert {key: value_of(settings, key) for key in expected} == expected
    plain = parse({}, phase | {key: expected[key] for key in OF_PHASES if key in expected})
    fields = [each.name for each in dataclasses.fields(settings)]
    changed = {name for name in fields if getattr(settings, name) != getattr(plain, name)}
    assert changed <= {key.partition(".")[0] for key in expected}
    given = read_deepspeed_file(settings.deepspeed)
    config = deepspeed_config(given, settings.zero_stage or 1, settings.precision)
    assert "auto" not in json.dumps(config)


@pytest.mark.parametrize(("said", "message"), REFUSED)
def test_what_has_no_meaning_here_is_refused(said, message, parse):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(said, {"global_batch": 8, "peak_lr": 0.01, "steps": 4})


def test_what_contradicts_is_refused_with_both_values_and_a_flag_beats_it(parse):
    said = {"train_batch_size": 64, "zero_optimization": {"stage": 2}}
    phase = {"global_batch": 8, "peak_lr": 0.01, "steps": 4}
    both = r"phases\[0\]\.global_batch is 8, .*json says 64 by train_batch_size; give --global_"
    with pytest.raises(ValueError, match=both):
        parse(said, phase)
    settings = parse(said, phase, "--global_batch", "8", "--zero_stage", "1")
    assert (settings.phases[0].global_batch, settings.zero_stage) == (8, 1)
    assert parse({"train_batch_size": 8}, phase).phases[0].global_batch == 8


def test_a_share_of_the_steps_is_a_warm_up_of_as_many(parse):
    phase = {"global_batch": 8, "steps": 20, "warmup_fraction": 0.1}
    said = {"scheduler": {"type": "WarmupDecayLR", "params": LINEAR}}
    assert parse(said, phase).phases[0].num_warmup_steps == 2
    said["scheduler"]["params"] = LINEAR | {"warmup_num_steps": 3}
    with pytest.raises(ValueError, match=r"warmup_steps is 2, .* says 3 by scheduler"):
        parse(said, phase)
