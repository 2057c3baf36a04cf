"""Files for DeepSpeed as people have them, written anew by their keys: what a run makes of each.

Run as a program, this file is one of the ranks that train with every key that DeepSpeed is given.
"""

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml

from pipeline.command_line.program import parse_settings
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import BERT, OURS, WITHOUT_DROPOUT, launch, rows_of, write_config
from tests.trainer.two_ranks import random_micro_batch, run_ranks
from trainer.cli import COMMANDS
from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.deepspeed_file import passed_to_deepspeed
from trainer.engine.deepspeed_keys import ALIASES, KEYS, Key
from trainer.settings import resolve

AUTO = "auto"
BATCHES = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), AUTO
)
ALL_AUTO = {
    **BATCHES,
    "gradient_clipping": AUTO,
    "steps_per_print": 2000,
    "wall_clock_breakdown": False,
}
SCALES = {"loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1}
FP16 = {"enabled": True, **SCALES, "initial_scale_power": 16}
HALF = {"fp16": {"enabled": AUTO, **SCALES}, "bf16": {"enabled": AUTO}}
BF16 = {"bf16": {"enabled": True}}
ADAMW = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), AUTO)}
WARMUP = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), AUTO)
STAGE2 = {
    "stage": 2, "allgather_partitions": True, "allgather_bucket_size": 2e8, "overlap_comm": True,
    "reduce_scatter": True, "reduce_bucket_size": 2e8, "contiguous_gradients": True,
}  # fmt: skip
STAGE3 = {
    "stage": 3, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9,
    "reduce_bucket_size": AUTO, "stage3_prefetch_bucket_size": AUTO,
    "stage3_param_persistence_threshold": AUTO, "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": True,
}  # fmt: skip
CPU, NOWHERE = {"device": "cpu", "pin_memory": True}, {"device": "none", "pin_memory": True}
OFFLOADED = {"offload_optimizer": CPU, "offload_param": CPU}
LINEAR = {"warmup_max_lr": 1e-3, "warmup_num_steps": 2, "warmup_type": "linear"}
CHECKPOINTING = {
    "partition_activations": False, "cpu_checkpointing": False, "number_checkpoints": False,
    "contiguous_memory_optimization": False, "synchronize_checkpoint_boundary": False,
}  # fmt: skip
# What DeepSpeed's FusedAdam takes where params leave it out.
FUSED = {"optimizer.eps": 1e-8, "optimizer.weight_decay": 0.0}
# The shape of a schedule, as each class of DeepSpeed's has it.
CONSTANT, FALLING = {"decay_power": 0.0}, {"decay_power": 1.0}
LOGARITHMIC = {"warmup_form": "log"}


def adam(kind="Adam", **params):
    return {"optimizer": {"type": kind, "params": params}}


def schedule(kind, **params):
    return {"scheduler": {"type": kind, "params": params}}


# Whose file it is like -> the file, and what the run takes from it.
FILES = {
    "transformers' tests, stage 2, without offloading": (
        {**HALF, "optimizer": ADAMW, **schedule("WarmupLR", **WARMUP), **ALL_AUTO,
         "zero_optimization": STAGE2},
        {"zero_stage": 2},
    ),
    "transformers' tests, stage 3, without offloading": (
        {**HALF, "optimizer": ADAMW, **schedule("WarmupLR", **WARMUP), **ALL_AUTO,
         "zero_optimization": STAGE3},
        {"zero_stage": 3},
    ),
    "transformers' pages, stage 0": (
        {"zero_optimization": {"stage": 0}}, {"zero_stage": 0}
    ),
    "transformers' pages, stage 1": (
        {"zero_optimization": {"stage": 1}}, {"zero_stage": 1}
    ),
    "transformers' pages, old names of stage 3": (
        {"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True,
                               "prefetch_bucket_size": 0}},
        {"zero_stage": 3},
    ),
    "transformers' pages, fp32": (
        {"fp16": {"enabled": False}, "zero_optimization": {"stage": 2}, **BATCHES},
        {"zero_stage": 2},
    ),
    "transformers' pages, bf16 and gradients in fp32": (
        {**BF16, "communication_data_type": "fp32", "zero_optimization": {"stage": 2}},
        {"precision": "bf16", "zero_stage": 2},
    ),
    "accelerate's templates, stage 1": (
        {**HALF, "optimizer": {"type": "AdamW", "params": {
            **ADAMW["params"], "torch_adam": True, "adam_w_mode": True}},
         **schedule("WarmupDecayLR", **WARMUP, total_num_steps=AUTO), **ALL_AUTO,
         "gradient_accumulation_steps": 1, "zero_optimization": {**STAGE2, "stage": 1}},
        {"zero_stage": 1},
    ),
    "accelerate, stage 3 without offloading": (
        {"zero_optimization": {**STAGE3, "offload_param": {"device": "none"}},
         "gradient_clipping": 0.5, **BF16, **BATCHES},
        {"zero_stage": 3, "optimizer.max_grad_norm": 0.5, "precision": "bf16"},
    ),
    "accelerate, which never prints": (
        {**BATCHES, "steps_per_print": float("inf"), "fp16": {"enabled": False},
         "zero_optimization": {"stage": 2,
                               "offload_optimizer": {"device": "none", "nvme_path": None}}},
        {"zero_stage": 2},
    ),
    "axolotl, zero1": (
        {"zero_optimization": {"stage": 1, "overlap_comm": True}, **HALF, **ALL_AUTO},
        {"zero_stage": 1},
    ),
    "axolotl, zero2": (
        {"zero_optimization": {"stage": 2, "contiguous_gradients": True, "overlap_comm": True},
         "bf16": {"enabled": AUTO}, "fp16": {"enabled": AUTO, "auto_cast": False, **SCALES},
         **ALL_AUTO},
        {"zero_stage": 2},
    ),
    "axolotl, zero3": (
        {"zero_optimization": {**STAGE3, "sub_group_size": 0, "stage3_max_live_parameters": 0,
                               "stage3_max_reuse_distance": 0}, **HALF, **ALL_AUTO},
        {"zero_stage": 3},
    ),
    "axolotl, zero3_bf16": (
        {"zero_optimization": {**STAGE3, "sub_group_size": 0}, **BF16, **ALL_AUTO},
        {"zero_stage": 3, "precision": "bf16"},
    ),
    "LLaMA-Factory, z0": (
        {**HALF, **BATCHES, "zero_allow_untested_optimizer": True,
         "zero_optimization": {**STAGE2, "stage": 0, "round_robin_gradients": True}},
        {"zero_stage": 0},
    ),
    "LLaMA-Factory, z2": (
        {**HALF, **BATCHES, "zero_allow_untested_optimizer": True,
         "zero_optimization": {**STAGE2, "round_robin_gradients": True}},
        {"zero_stage": 2},
    ),
    "LLaMA-Factory, z3": (
        {**HALF, **BATCHES, "zero_allow_untested_optimizer": True, "zero_optimization": STAGE3},
        {"zero_stage": 3},
    ),
    "LLaVA, zero2": (
        {**HALF, **BATCHES, "zero_optimization": {
            "stage": 2, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9,
            "reduce_bucket_size": AUTO}},
        {"zero_stage": 2},
    ),
    "LLaVA, zero3": (
        {**HALF, **ALL_AUTO, "zero_optimization": STAGE3, "steps_per_print": 1e5},
        {"zero_stage": 3},
    ),
    "Qwen, zero2 that offloads nowhere": (
        {**HALF, "optimizer": ADAMW, **schedule("WarmupLR", **WARMUP), **ALL_AUTO,
         "zero_optimization": {**STAGE2, "offload_optimizer": NOWHERE}},
        {"zero_stage": 2},
    ),
    "Qwen, zero3 that offloads nowhere": (
        {**HALF, "optimizer": ADAMW, **ALL_AUTO, "zero_optimization": {
            **STAGE3, "offload_optimizer": NOWHERE, "offload_param": NOWHERE}},
        {"zero_stage": 3},
    ),
    "ChatGLM": (
        {"train_micro_batch_size_per_gpu": AUTO, "zero_allow_untested_optimizer": True, **HALF,
         "zero_optimization": {**STAGE2, "overlap_comm": False, "allgather_bucket_size": 5e8}},
        {"zero_stage": 2},
    ),
    "Open-Assistant": (
        {**HALF, "optimizer": ADAMW, **ALL_AUTO, **schedule(
            "WarmupDecayLR", **WARMUP, warmup_type="linear", total_num_steps=AUTO),
         "zero_optimization": {**STAGE2, "allgather_bucket_size": 1e9}},
        {"zero_stage": 2, **FALLING},
    ),
    "Dolly": (
        {"bf16": {"enabled": AUTO}, "optimizer": ADAMW, **schedule("WarmupLR", **WARMUP),
         "zero_optimization": {**STAGE3, "reduce_scatter": True}, **ALL_AUTO},
        {"zero_stage": 3},
    ),
    "Mistral of Stanford's CRFM": (
        {"optimizer": ADAMW, "gradient_clipping": AUTO, "train_batch_size": AUTO, **schedule(
            "WarmupDecayLR", last_batch_iteration=-1, **WARMUP, total_num_steps=AUTO),
         "zero_optimization": {"stage": 2}},
        {"zero_stage": 2},
    ),
    "Lightning's defaults": (
        {"activation_checkpointing": CHECKPOINTING, "zero_allow_untested_optimizer": True,
         "aio": {"block_size": 1048576, "queue_depth": 8, "single_submit": False},
         "zero_optimization": {**STAGE2, "sub_group_size": 1e12}, "gradient_clipping": 0.0,
         "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4},
        {"zero_stage": 2, "optimizer.max_grad_norm": 0.0, "global_batch": 8,
         "micro_tokens": 32},
    ),
    "lit-gpt": (
        {"zero_allow_untested_optimizer": True, "zero_optimization": {"stage": 2}, **BF16,
         "train_micro_batch_size_per_gpu": 4},
        {"zero_stage": 2, "precision": "bf16", "micro_tokens": 4 * 32},
    ),
    "open_clip": (
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 32,
         "optimizer": {"type": "Adam", "adam_w_mode": True, "params": {
             "bias_correction": True, "betas": [0.9, 0.98], "eps": 1e-6}},
         "fp16": {"enabled": False, **SCALES}, **BF16, "amp": {"enabled": False, "opt_level": "O2"},
         "flops_profiler": {"enabled": True, "profile_step": -1, "module_depth": -1,
                            "top_modules": 1, "detailed": True},
         "zero_optimization": {"stage": 1}},
        {"global_batch": 64, "micro_tokens": 32 * 32, "optimizer.beta2": 0.98, "precision": "bf16",
         "optimizer.weight_decay": 0.0, "peak_lr": 1e-3, "zero_stage": 1},
    ),
    "BEiT": (
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 32, "steps_per_print": 1000,
         "optimizer": {"type": "Adam", "adam_w_mode": True, "params": {
             "lr": 1.5e-3, "weight_decay": 0.05, "bias_correction": True, "betas": [0.9, 0.98],
             "eps": 1e-8}},
         "fp16": {"enabled": False, **SCALES, "initial_scale_power": 7}},
        {"global_batch": 64, "micro_tokens": 32 * 32, "peak_lr": 1.5e-3, "optimizer.eps": 1e-8,
         "optimizer.weight_decay": 0.05, "optimizer.beta2": 0.98},
    ),
    "DeepSpeed-Chat": (
        {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10,
         "zero_optimization": {
             "stage": 2, "overlap_comm": True, "offload_param": {"device": "none"},
             "offload_optimizer": {"device": "none"}, "stage3_param_persistence_threshold": 1e4,
             "stage3_max_live_parameters": 3e7, "stage3_prefetch_bucket_size": 3e7,
             "memory_efficient_linear": False},
         "bfloat16": {"enabled": True}, "gradient_clipping": 1.0, "prescale_gradients": False,
         "wall_clock_breakdown": False, "hybrid_engine": {"enabled": False, "max_out_tokens": 512},
         "tensorboard": {"enabled": False, "output_path": "logs/", "job_name": "step1"}},
        {"global_batch": 32, "micro_tokens": 4 * 32, "zero_stage": 2, "precision": "bf16"},
    ),
    "DeepSpeedExamples, bing_bert in fp32": (
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 16, "prescale_gradients": False,
         **adam(lr=4e-4, weight_decay=0.02, bias_correction=False), "steps_per_print": 100,
         "gradient_clipping": 1.0, "fp16": {"enabled": False, "loss_scale": 0}},
        {"global_batch": 64, "micro_tokens": 16 * 32, "peak_lr": 4e-4, "optimizer.eps": 1e-8,
         "optimizer.weight_decay": 0.02, "optimizer.bias_correction": False},
    ),
    "DeepSpeedExamples, bing_bert fine-tuned": (
        {"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3, "steps_per_print": 10,
         **adam(lr=3e-5, max_grad_norm=1.0, weight_decay=0.0, bias_correction=False),
         "gradient_clipping": 1.0, "fp16": {"enabled": False}},
        {"global_batch": 24, "micro_tokens": 96, "peak_lr": 3e-5, **FUSED,
         "optimizer.bias_correction": False},
    ),
    "DeepSpeedExamples, LAMB": (
        {"train_batch_size": 32, **BF16,
         **adam("Lamb", lr=0.002, betas=[0.9, 0.99], eps=1e-8, max_coeff=10.0)},
        {"optimizer.name": "lamb", "optimizer.beta2": 0.99, **FUSED,
         "peak_lr": 0.002, "global_batch": 32, "precision": "bf16"},
    ),
    "DeepSpeed's Muon by the rate of its AdamW": (
        adam("Muon", adam_lr=1e-3, momentum=0.95, weight_decay=0.1),
        {"optimizer.name": "muon", "peak_lr": 1e-3, "optimizer.eps": 1e-8,
         "optimizer.weight_decay": 0.1},
    ),
    "DeepSpeed's tutorial, cifar": (
        {"train_batch_size": 16, "steps_per_print": 2000, "wall_clock_breakdown": False,
         **adam(lr=0.001, betas=[0.8, 0.999], eps=1e-8, weight_decay=3e-7),
         **schedule("WarmupLR", warmup_min_lr=0, warmup_max_lr=0.001, warmup_num_steps=1000)},
        {"global_batch": 16, "peak_lr": 1e-3, "optimizer.beta1": 0.8, "optimizer.eps": 1e-8,
         "optimizer.weight_decay": 3e-7, "warmup_steps": 1000, **CONSTANT, **LOGARITHMIC},
    ),
    "DeepSpeedExamples, cifar by its program": (
        {"train_batch_size": 16, "gradient_clipping": 1.0, "prescale_gradients": False,
         "bf16": {"enabled": False}, "fp16": {**FP16, "enabled": False}, "zero_optimization": {
             **STAGE2, "stage": 0, "allgather_bucket_size": 5e7, "cpu_offload": False},
         "scheduler": {"type": "WarmupLR", "params": LINEAR}},
        {"global_batch": 16, "zero_stage": 0, "peak_lr": 1e-3, "warmup_steps": 2, **CONSTANT,
         "precision": "fp32"},
    ),
    "DeepSpeed's tutorial, ZeRO-2": (
        {"zero_optimization": {"stage": 2, "contiguous_gradients": True, "overlap_comm": True,
                               "reduce_scatter": True, "reduce_bucket_size": 5e8,
                               "allgather_bucket_size": 5e8}},
        {"zero_stage": 2},
    ),
    "DeepSpeed's tutorial, ZeRO-3": (
        {"zero_optimization": {
            "stage": 3, "stage3_max_live_parameters": 6000000, "stage3_max_reuse_distance": 1e8,
            "stage3_prefetch_bucket_size": 200000, "stage3_param_persistence_threshold": 100000,
            "reduce_bucket_size": 3000000, "sub_group_size": 1e6}},
        {"zero_stage": 3},
    ),
    "DeepSpeed of 2020, ZeRO is true": (
        {"train_batch_size": 64, "zero_optimization": True, "disable_allgather": False,
         "allgather_size": 500000000, "fp32_allreduce": True, "sparse_gradients": False},
        {"zero_stage": 1, "global_batch": 64},
    ),
    "DeepSpeed of 2020, ZeRO is false": ({"zero_optimization": False}, {"zero_stage": 0}),
    "DeepSpeed's page of flops": (
        {"flops_profiler": {"enabled": True, "profile_step": 1, "module_depth": -1,
                            "top_modules": 1, "detailed": True, "output_file": None}},
        {},
    ),
    "DeepSpeed's page of logged communication": (
        {"comms_logger": {"enabled": True, "verbose": False, "prof_all": False, "debug": False,
                          "prof_ops": ["all_reduce", "all_gather"]}},
        {},
    ),
    "DeepSpeed's page of monitors, TensorBoard and wandb": (
        {"tensorboard": {"enabled": True}, "wandb": {"enabled": True, "project": "bert"},
         "csv_monitor": {"enabled": False, "output_path": "csv"}},
        {"wandb": "bert"},
    ),
    "DeepSpeed's page of monitors, wandb's default": (
        {"wandb": {"enabled": True}}, {"wandb": "deepspeed"}
    ),
    "DeepSpeed's page of checkpoints": (
        {"checkpoint": {"tag_validation": "Warn", "load_universal": False,
                        "use_node_local_storage": False,
                        "parallel_write": {"pipeline_stage": False}}},
        {},
    ),
    "DeepSpeed's page of activations": (
        {"activation_checkpointing": {**CHECKPOINTING, "number_checkpoints": 4, "profile": False}},
        {},
    ),
    "switched off": (
        {"autotuning": {"enabled": False},
         "elasticity": {"enabled": False, "max_train_batch_size": 9},
         "curriculum_learning": {"enabled": False}, "data_efficiency": {"enabled": False},
         "compression_training": {}, "progressive_layer_drop": {"enabled": False, "theta": 0.5},
         "quantize_training": {"enabled": False}, "torch_autocast": {"enabled": False},
         "compile": {"deepcompile": False}, "tensor_parallel": {"autotp_size": 0},
         "sequence_parallel_size": 1, "comet": {"enabled": False}, "nebula": {"enabled": False},
         "zero_optimization": {"stage": 1, "zero_quantized_weights": False, "zenflow": None,
                               "zero_hpz_partition_size": 1, "mics_shard_size": -1}},
        {"zero_stage": 1},
    ),
    "templates of DeepSpeed's autotuning": (
        {"zero_optimization": {"stage": 3, "allgather_partitions": True,
                               "allgather_bucket_size": 5e8, "overlap_comm": False,
                               "reduce_scatter": True, "reduce_bucket_size": 5e8,
                               "contiguous_gradients": False, "stage3_max_live_parameters": 1e9,
                               "stage3_max_reuse_distance": 1e9, "stage3_prefetch_bucket_size": 5e8,
                               "stage3_param_persistence_threshold": 1e6, "sub_group_size": 1e12,
                               "elastic_checkpoint": True, "ignore_unused_parameters": True,
                               "round_robin_gradients": False,
                               "stage3_gather_16bit_weights_on_model_save": False}},
        {"zero_stage": 3},
    ),
    "a linear decay": (
        schedule("WarmupDecayLR", **LINEAR, total_num_steps=6),
        {"steps": 6, "warmup_steps": 2, **FALLING, "peak_lr": 1e-3},
    ),
    "a decay whose steps alone are said": (
        schedule("WarmupDecayLR", total_num_steps=2000, warmup_min_lr=1e-5),
        {"steps": 2000, "warmup_steps": 1000, **FALLING, **LOGARITHMIC, "peak_lr": 1e-3,
         "start_lr": 1e-5, "end_lr": 1e-5},
    ),
    "a warm-up of which nothing is said": (
        schedule("WarmupLR"), {"warmup_steps": 1000, **CONSTANT, **LOGARITHMIC}
    ),
    "a warm-up of one step": (
        schedule("WarmupLR", warmup_num_steps=1, warmup_max_lr=0.002),
        {"warmup_steps": 2, **CONSTANT, **LOGARITHMIC, "peak_lr": 0.002},
    ),
    "half a cosine": (
        {**adam("AdamW", lr=2e-3), **schedule(
            "WarmupCosineLR", total_num_steps=3000, warmup_min_ratio=0.25, cos_min_ratio=0.125,
            warmup_num_steps=500, warmup_type="linear")},
        {"decay_form": "cosine", "peak_lr": 2e-3, "start_lr": 5e-4, "end_lr": 2.5e-4,
         "steps": 3000, "warmup_steps": 500, **FUSED},
    ),
    "half a cosine, of which the steps alone are said": (
        schedule("WarmupCosineLR", total_num_steps=3000),
        {"decay_form": "cosine", "end_lr": 0.01 * 1e-4, "steps": 3000, "warmup_steps": 1000,
         **LOGARITHMIC},
    ),
    "the schedule's rate is taken over the optimizer's": (
        {**adam(lr=5e-5, weight_decay=0.01), **schedule(
            "WarmupDecayLR", total_num_steps=2000, warmup_max_lr=1e-4, warmup_num_steps=100)},
        {"peak_lr": 1e-4, "steps": 2000, "warmup_steps": 100, **FALLING, **LOGARITHMIC,
         "optimizer.eps": 1e-8},
    ),
    "an optimizer alone": (
        {"optimizer": {"type": "AdamW"}}, {"peak_lr": 1e-3, **FUSED}
    ),
    "torch's AdamW": (adam("AdamW", torch_adam=True), {"peak_lr": 1e-3, "optimizer.eps": 1e-8}),
    "L2 of no weight": (adam("Adam", adam_w_mode=False, lr=0.1), {"peak_lr": 0.1, **FUSED}),
    "Megatron-DeepSpeed": (
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
         "gradient_accumulation_steps": 8, **BF16, "sparse_gradients": False,
         "zero_optimization": {"stage": 1, "elastic_checkpoint": True, "cpu_offload": False},
         "activation_checkpointing": {"partition_activations": False, "profile": False},
         "data_types": {"grad_accum_dtype": "fp32"}},
        {"global_batch": 64, "micro_tokens": 4 * 32, "zero_stage": 1, "precision": "bf16"},
    ),
    "Megatron-DeepSpeed's BERT, without fp16": (
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 32, "steps_per_print": 10,
         "zero_optimization": {"stage": 0}, "gradient_clipping": 1.0, "prescale_gradients": True,
         "wall_clock_breakdown": False} | {"prescale_gradients": False},
        {"global_batch": 64, "micro_tokens": 32 * 32, "zero_stage": 0},
    ),
    "nothing": ({}, {}),
    "null everywhere": (
        dict.fromkeys(("optimizer", "scheduler", "fp16", "zero_optimization", "train_batch_size")),
        {},
    ),
    "numbers and switches as text": (
        {"train_batch_size": "64", "bf16": {"enabled": "true"}, "gradient_clipping": "0.5",
         "zero_optimization": {"stage": "2", "reduce_bucket_size": "1000", "overlap_comm": "false"},
         **adam("adamw", lr="1e-3", betas=["0.9", "0.98"])},
        {"global_batch": 64, "precision": "bf16", "optimizer.max_grad_norm": 0.5, "zero_stage": 2,
         "peak_lr": 1e-3, "optimizer.beta2": 0.98, **FUSED},
    ),
    "whole numbers with a point, switches as numbers": (
        {"train_batch_size": 24.0, "steps_per_print": 1e9, "bf16": {"enabled": 1},
         "fp16": {"enabled": 0}, "zero_optimization": {"stage": 2.0, "sub_group_size": 1e14}},
        {"global_batch": 24, "precision": "bf16", "zero_stage": 2},
    ),
    "keys that are comments": (
        {"_read_the_docs": "https://www.deepspeed.ai", "//": ["why"], "zero_optimization": {
            "stage": 1, "_why": "memory"}},
        {"zero_stage": 1},
    ),
    "one micro-batch a rank": (
        {"train_micro_batch_size_per_gpu": 3, "zero_optimization": {}},
        {"global_batch": 6, "micro_tokens": 96, "zero_stage": 0},
    ),
}  # fmt: skip
NO_PLACE = "which has no place here:"
ON_DEVICE = f"{NO_PLACE} what ZeRO partitions stays on its device"
REFUSED = [
    ("transformers' tests, stage 2", {"zero_optimization": {**STAGE2, "offload_optimizer": CPU}},
     f'offload_optimizer, {ON_DEVICE}; write "device": "none"'),
    ("transformers' tests, stage 3", {"zero_optimization": {**STAGE3, **OFFLOADED}},
     f"zero_optimization.offload_param, {ON_DEVICE}"),
    ("ZeRO-Infinity", {"zero_optimization": {"stage": 3, "offload_param": {
        "device": "nvme", "nvme_path": "/nvme"}}}, f"offload_param, {ON_DEVICE}"),
    ("ZeRO-Offload of 2020", {"zero_optimization": {"stage": 2, "cpu_offload": True}},
     f"zero_optimization.cpu_offload to true, {ON_DEVICE}; leave it out"),
    ("ZenFlow", {"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}},
     f"zero_optimization.zenflow, {ON_DEVICE}"),
    ("ZeRO++", {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}},
     f"zero_quantized_weights to true, {NO_PLACE} gradients are summed and reduced in fp32"),
    ("ZeRO++ in nodes", {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 16}},
     f"zero_hpz_partition_size to 16, {NO_PLACE} every rank has a part"),
    ("MiCS", {"zero_optimization": {"stage": 3, "mics_shard_size": 8}}, "mics_shard_size to 8"),
    ("accelerate's templates", {"fp16": FP16},
     f'fp16.enabled to true, {NO_PLACE} there is no loss scaling here; write "bf16": {{"enab'),
    ("bing_bert at 64 k", {"train_batch_size": 65536, **adam(
        "Lamb", lr=11e-3, weight_decay=0.01, bias_correction=False, max_coeff=0.3, min_coeff=0.01)},
     f"optimizer.params.max_coeff to 0.3, {NO_PLACE} Lamb has no such setting here"),
    ("fp16 as text", {"fp16": {"enabled": "true"}}, 'fp16.enabled to "true"'),
    ("fp16 as a number", {"fp16": {"enabled": 1}}, "fp16.enabled to 1"),
    ("fp16 as a switch", {"fp16": True}, "fp16: found true, expected keys and values"),
    ("apex", {"amp": {"enabled": True, "opt_level": "O1"}}, f"amp, {NO_PLACE} there is no loss"),
    ("autocast", {"torch_autocast": {"enabled": True}}, f"{NO_PLACE} --precision bf16 does it"),
    ("half sums", {"communication_data_type": "fp16"}, 'communication_data_type to "fp16"'),
    ("half sums of passes", {"data_types": {"grad_accum_dtype": "bf16"}}, "grad_accum_dtype"),
    ("half weights", {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
     f"bf16_master_weights_and_grads to true, {NO_PLACE} weights are updated in fp32"),
    ("prescaled", {"prescale_gradients": True}, "prescale_gradients to true"),
    ("summed", {"gradient_allreduce_op": "sum"}, f"{NO_PLACE} the loss is that of the global"),
    ("a rate of Muon's own", adam("Muon", lr=0.02, momentum=0.95),
     "optimizer.params.lr is 0.02; Muon has no such setting here: Muon's updates have AdamW's"),
    ("another momentum", adam("Muon", momentum=0.9), "optimizer.params.momentum to 0.9"),
    ("momentum of Adam", adam("Adam", momentum=0.95), "Adam has no such setting here"),
    ("1-bit Adam", adam("OneBitAdam", lr=4e-4), "optimizer.type is OneBitAdam; choose AdamW, Adam"),
    ("1-bit Adam whole", adam("OneBitAdam", lr=4e-4, freeze_step=23000, cuda_aware=False),
     f"sets optimizer.params.freeze_step, {NO_PLACE} no such key is known"),
    ("torch's SGD", adam("SGD", lr=4e-4), "optimizer.type is SGD; choose AdamW"),
    ("L2", adam("Adam", adam_w_mode=False, weight_decay=0.1), "weight decay is decoupled here"),
    ("AMSGrad", adam("Adam", amsgrad=True), "amsgrad to true"),
    ("params of no type", {"optimizer": {"params": {"lr": 1e-3}}}, "params and no type; say AdamW"),
    ("three betas", adam("Adam", betas=[0.9, 0.9, 0.9]), "expected two numbers"),
    ("beta of 1", adam("Adam", betas=[0.9, 1.0]), "optimizer.beta2 is 1.0; it must be"),
    ("OneCycle", schedule("OneCycle", cycle_min_lr=1e-5), "no such key is known"),
    ("a range test", schedule("LRRangeTest"),
     "scheduler.type is LRRangeTest; choose WarmupLR, WarmupDecayLR, WarmupCosineLR"),
    ("no warm-up", schedule("WarmupLR", warmup_num_steps=0),
     "scheduler.params.warmup_num_steps: found 0, expected at least 1"),
    ("another warm-up", schedule("WarmupLR", warmup_type="cosine"),
     "scheduler.params.warmup_type: found 'cosine', expected one of log, linear"),
    ("a long warm-up", schedule("WarmupDecayLR", total_num_steps=4),
     "warmup_steps is 1000 and a phase has 4 steps"),
    ("an end of WarmupLR", schedule("WarmupLR", total_num_steps=4),
     "sets scheduler.params.total_num_steps, which WarmupLR does not take; it takes last_batch"),
    ("a schedule of no type", {"scheduler": {"params": LINEAR}}, "has params and no type"),
    ("a schedule inside", {"optimizer": {"type": "AdamW", "scheduler": {"type": "WarmupLR"}}},
     f"optimizer.scheduler, {NO_PLACE} no such key is known; did you mean scheduler?"),
    ("a hidden rate", {**adam("AdamW", lr=4e-4), **schedule("WarmupDecayLR", total_num_steps=2000)},
     "optimizer.params.lr is 0.0004, but WarmupDecayLR's scheduler.params.warmup_max_lr is 0.001"),
    ("resumed", schedule("WarmupLR", last_batch_iteration=10), "a run that goes on finds its own"),
    ("curriculum", {"curriculum_learning": {"enabled": True, "curriculum_type": "seqlen"}},
     f"curriculum_learning, {NO_PLACE} the dataset decides which instance comes"),
    ("data efficiency", {"data_efficiency": {"enabled": True}}, "the dataset decides"),
    ("layer drop", {"progressive_layer_drop": {"enabled": True}}, "the model is BERT"),
    ("compression", {"compression_training": {"x": {"x": 1}}}, "the model is BERT"),
    ("sparse attention", {"sparse_attention": {"mode": "fixed", "block": 16}}, "the model is BERT"),
    ("tensor parallel", {"tensor_parallel": {"autotp_size": 2}}, "ranks share the data alone"),
    ("Ulysses", {"sequence_parallel_size": 2}, "ranks share the data alone"),
    ("pipelines", {"pipeline": {"stages": 2}}, "ranks share the data alone"),
    ("partitioned activations", {"activation_checkpointing": {"partition_activations": True}},
     "activation_checkpointing.partition_activations to true"),
    ("activations elsewhere", {"activation_checkpointing": {"cpu_checkpointing": True}},
     f"{NO_PLACE} activations stay on the device"),
    ("DeepCompile", {"compile": {"deepcompile": True}}, f"{NO_PLACE} --compile true compiles"),
    ("axolotl, compiled", {"compile": {"disable": False, "backend": "x"}}, "--compile true"),
    ("elastic", {"elasticity": {"enabled": True}}, "every number of ranks continues a run"),
    ("autotuning", {"autotuning": {"enabled": True, "fast": False}}, "plan` says what fits"),
    ("universal", {"checkpoint": {"load_universal": True}}, "--init_from opens a universal"),
    ("nebula", {"nebula": {"enabled": True}}, "checkpoints are ours"),
    ("TensorBoard elsewhere", {"tensorboard": {"enabled": True, "output_path": "logs"}},
     f'tensorboard.output_path to "logs", {NO_PLACE} curves are written into the run'),
    ("a team", {"wandb": {"enabled": True, "team": "t"}}, "wandb reads it from WANDB_ENTITY"),
    ("CSV", {"csv_monitor": {"enabled": True}}, "metrics.jsonl has every number"),
    ("no garbage", {"disable_python_gc": True}, "memory would grow"),
    ("whole batches", {"dataloader_drop_last": True}, "the stream leaves no instance out"),
    ("misspelt", {"zero_optimization": {"stage": 2, "reduce_bucket": 5e8}},
     f"zero_optimization.reduce_bucket, {NO_PLACE} no such key is known; did you mean zero_opt"),
    ("one level too high", {"overlap_comm": True},
     f"overlap_comm, {NO_PLACE} no such key is known; did you mean zero_optimization.over"),
    ("unknown", {"spin": 1}, f"sets spin, {NO_PLACE} no such key is known; leave it out"),
    ("a list", [], "found [], expected the settings"),
    ("a section of a number", {"zero_optimization": 3}, "found 3, expected keys and values"),
    ("stage 4", {"zero_optimization": {"stage": 4}}, "stage: found '4', expected one of 0, 1"),
    ("stage NaN", {"zero_optimization": {"stage": float("nan")}}, "found 'nan', expected one"),
    ("clipping NaN", {"gradient_clipping": float("nan")}, "found 'nan', expected a number"),
    ("clipping below 0", {"gradient_clipping": -1}, "found -1, expected at least 0"),
    ("half an instance", {"train_batch_size": 24.5}, "found '24.5', expected a whole number"),
    ("no instance", {"train_batch_size": 0}, "train_batch_size: found 0, expected at least 1"),
    ("no bucket", {"zero_optimization": {"reduce_bucket_size": 0}},
     "zero_optimization.reduce_bucket_size: found 0, expected at least 1"),
    ("a bucket below 0", {"zero_optimization": {"stage3_prefetch_bucket_size": -1}}, "at least 0"),
    ("no switch", {"zero_optimization": {"overlap_comm": "perhaps"}}, "expected true or false"),
    ("a list of switches", {"zero_optimization": {"overlap_comm": [True]}}, "found a list"),
    ("three that differ", dict(zip(BATCHES, (9, 2, 2), strict=True)), "are 8; leave"),
    ("two clippings", {"gradient_clipping": 1.0, **adam("Lamb", max_grad_norm=0.5)},
     "gradient_clipping is 1.0 and optimizer.params.max_grad_norm is 0.5; leave one of them out"),
]  # fmt: skip
PHASE = {"global_batch": 8, "peak_lr": 0.01, "steps": 4000, "warmup_steps": 1}


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """parse(file, phase, *flags): the settings of a pretrain command with a recipe of one phase."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    file, recipe = tmp_path / "ds_config.json", tmp_path / "recipe.yaml"

    def call(said, phase, *flags):
        file.write_text(said if isinstance(said, str) else json.dumps(said))
        recipe.write_text(json.dumps({"phases": [{"seq_len": 32, **phase}]}))
        words = ["--config", str(recipe), "--data", "d", "--output", "o", "--deepspeed", str(file)]
        return resolve(parse_settings("pretrain", COMMANDS["pretrain"], [*words, *flags]))

    return call


def values_of(settings):
    """Every setting by its name, those of the only phase without a prefix."""
    found = {}
    for name, value in dataclasses.asdict(settings).items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": each for key, each in value.items()}
        else:
            found[name] = value
    return found | found.pop("phases")[0]


def test_there_are_enough_files():
    assert len(FILES) > 60
    assert len(REFUSED) > 60


@pytest.mark.parametrize("name", FILES)
def test_files_as_people_have_them(name, parse):
    """A run takes exactly what is expected, and all else from the recipe and the defaults."""
    said, expected = FILES[name]
    stated = {key: value for key, value in PHASE.items() if key not in expected}
    found = values_of(parse(said, stated))
    plain = values_of(parse({}, PHASE))
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    changed = {key for key in found if found[key] != plain[key]}
    assert changed <= {*expected, "deepspeed"}
    config = deepspeed_config(
        passed_to_deepspeed(found["deepspeed"]), found["zero_stage"] or 1, found["precision"]
    )
    assert '"auto"' not in json.dumps(config)


@pytest.mark.parametrize(
    ("said", "message"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_what_has_no_meaning_here_is_refused_in_one_line(said, message, parse):
    phase = (
        PHASE if "total_num_steps" not in json.dumps(said) else {"global_batch": 8, "peak_lr": 1.0}
    )
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        parse(said, phase)
    assert all("ds_config.json" in line for line in str(error.value).splitlines())


def test_every_mistake_has_a_line(parse):
    said = {"fp16": {"enabled": True}, "zero_optimization": {"stage": 5, "cpu_offload": True}}
    with pytest.raises(ValueError, match="fp16") as error:
        parse(said, PHASE)
    assert len(str(error.value).splitlines()) == 3


def test_what_contradicts_is_refused_with_both_values_and_a_flag_beats_it(parse):
    said = {"train_batch_size": 64, "zero_optimization": {"stage": 2}}
    both = r"phases\[0\]\.global_batch is 8, .*json says 64 by train_batch_size; give --global_"
    with pytest.raises(ValueError, match=both):
        parse(said, PHASE)
    settings = parse(said, PHASE, "--global_batch", "8", "--zero_stage", "1")
    assert (settings.phases[0].global_batch, settings.zero_stage) == (8, 1)
    assert parse({"train_batch_size": 8}, PHASE).phases[0].global_batch == 8
    said = schedule("WarmupDecayLR", total_num_steps=4000)
    with pytest.raises(ValueError, match=r"decay_from is start, .* give --phases\.decay_from to"):
        parse(said, {**PHASE, "decay_from": "start", "peak_lr": 1e-3})


def test_what_a_section_leaves_out_fills_only_what_nothing_else_says(parse):
    settings = parse({**adam("AdamW"), **schedule("WarmupLR")}, PHASE, "--optimizer.eps", "0.1")
    assert settings.phases[0].num_warmup_steps == 1
    assert settings.phases[0].peak_lr == 0.01
    assert (settings.optimizer.eps, settings.optimizer.weight_decay) == (0.1, 0.0)


def test_shares_of_the_rate_are_those_of_each_phases_rate(parse):
    said = schedule("WarmupCosineLR", warmup_num_steps=1000, cos_min_ratio=0.5)
    phase = {key: PHASE[key] for key in ("global_batch", "steps", "peak_lr")}
    settings = parse(said, phase, "--peak_lr", "0.25")
    assert (settings.phases[0].peak_lr, settings.phases[0].end_lr) == (0.25, 0.125)


def test_a_share_of_the_steps_is_a_warm_up_of_as_many(parse):
    phase = {"global_batch": 8, "steps": 20, "warmup_fraction": 0.1}
    said = {"scheduler": {"type": "WarmupDecayLR", "params": LINEAR}}
    assert parse(said, phase).phases[0].num_warmup_steps == 2
    said["scheduler"]["params"] = LINEAR | {"warmup_num_steps": 3}
    with pytest.raises(ValueError, match=r"warmup_steps is 2, .* says 3 by scheduler"):
        parse(said, phase)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"train_batch_size": 8, "train_batch_size": 16}', "says train_batch_size 2 times; leave"),
        ('{"zero_optimization": {"stage": 1, "stage": 3}}', "says zero_optimization.stage 2 times"),
        ('{"train_batch_size": 8', "is neither JSON (Expecting ',' delimiter: line 1"),
        ("", "is empty, expected the settings of DeepSpeed"),
        ("[" * 100_000, "is nested too deep"),
        ("3", "found 3, expected the settings of DeepSpeed"),
    ],
)
def test_a_file_that_is_none_says_so(parse, text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text, PHASE)


def test_comments_and_last_commas_are_read(parse):
    text = """{
      // as DeepSpeed's own pages have it
      "train_batch_size": 64,  # of both ranks
      "zero_optimization": {"stage": 2, /* no offloading */},
    }"""
    settings = parse(text, {key: PHASE[key] for key in PHASE if key != "global_batch"})
    assert (settings.phases[0].global_batch, settings.zero_stage) == (64, 2)


def test_a_file_that_is_not_text_says_so(parse, tmp_path):
    (tmp_path / "other.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"other\.json is not UTF-8 text"):
        parse({}, PHASE, "--deepspeed", str(tmp_path / "other.json"))


def test_every_key_of_the_installed_deepspeed_is_known():
    """What DeepSpeed reads of a file is in the table; a new version's keys would be missing."""
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.monitor.config import TensorBoardConfig, WandbConfig
    from deepspeed.runtime import config as runtime_config
    from deepspeed.runtime import constants
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    sections = {
        "zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config, "comms_logger": CommsLoggerConfig, "compile": CompileConfig,
        "tensorboard": TensorBoardConfig, "wandb": WandbConfig,
    }  # fmt: skip
    names = {
        f"{section}.{name}"
        for section, model in sections.items()
        for field, info in model.model_fields.items()
        for name in {field, info.alias or field}
    }
    tops = [
        "TRAIN_BATCH_SIZE", "TRAIN_MICRO_BATCH_SIZE_PER_GPU", "GRADIENT_ACCUMULATION_STEPS",
        "MANAGED_GRADIENT_ACCUMULATION", "STEPS_PER_PRINT", "DUMP_STATE", "DISABLE_PYTHON_GC",
        "DISABLE_ALLGATHER", "COMMUNICATION_DATA_TYPE", "SEQ_PARALLEL_COMMUNICATION_DATA_TYPE",
        "PRESCALE_GRADIENTS", "GRADIENT_PREDIVIDE_FACTOR", "GRADIENT_ALLREDUCE_OP",
        "GRADIENT_CLIPPING", "ZERO_ALLOW_UNTESTED_OPTIMIZER", "ZERO_FORCE_DS_CPU_OPTIMIZER",
        "WALL_CLOCK_BREAKDOWN", "MEMORY_BREAKDOWN", "USE_DATA_BEFORE_EXPERT_PARALLEL",
        "DATALOADER_DROP_LAST", "LOG_LEVEL", "VOCABULARY_SIZE", "TORCH_AUTOCAST",
    ]  # fmt: skip
    names |= {getattr(constants, name) for name in tops}
    names |= {*runtime_config._REMOVED_TOP_LEVEL_CONFIG_KEYS}
    names |= {f"zero_optimization.{key}" for key in runtime_config._REMOVED_ZERO_CONFIG_KEYS}
    assert {name for name in names if ALIASES.get(name, name) not in KEYS} - {
        "sparse_gradients"
    } == set()


# Every key that DeepSpeed is given, with a value that is not its default; some of ZeRO-3 alone.
ZERO_1_2 = {
    "reduce_bucket_size": 1000, "allgather_bucket_size": 1000, "reduce_scatter": False,
    "contiguous_gradients": True, "overlap_comm": True, "use_multi_rank_bucket_allreduce": False,
    "parameter_alignment": True, "ignore_unused_parameters": False,
}  # fmt: skip
ZERO_3 = {
    "stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0,
    "stage3_model_persistence_threshold": 10, "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0, "stage3_module_granularity_threshold": 5,
    "stage3_use_all_reduce_for_fetch_params": True, "memory_efficient_linear": False,
    "override_module_apply": False, "log_trace_cache_warnings": True, "enable_sanity_checks": True,
}  # fmt: skip
PRINTED = {
    "wall_clock_breakdown": True, "memory_breakdown": True, "dump_state": True,
    "comms_logger": {"enabled": True, "verbose": True, "prof_all": False, "debug": True,
                     "prof_ops": ["all_reduce"]},
    "flops_profiler": {"enabled": True, "profile_step": 2, "module_depth": 1, "top_modules": 2,
                       "detailed": False, "recompute_fwd_factor": 0.5, "output_file": "flops.txt"},
}  # fmt: skip
RUNS = {
    "1 fp32": {"zero_optimization": ZERO_1_2},
    "1 bf16": {"zero_optimization": ZERO_1_2},
    "2 fp32": {"zero_optimization": {**ZERO_1_2, "round_robin_gradients": True}, **PRINTED},
    "2 bf16": {"zero_optimization": {**ZERO_1_2, "contiguous_gradients": False}},
    "3 fp32": {"zero_optimization": {**ZERO_1_2, **ZERO_3}, **PRINTED},
    "3 bf16": {"zero_optimization": {"stage3_allgather_sequential": True, "overlap_comm": False}},
}
STEPS = 4


def flatten(section, prefix=""):
    for name, value in section.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_key_that_deepspeed_is_given_is_run():
    passed = {name for name, key in KEYS.items() if isinstance(key, Key) and key.is_passed}
    assert passed <= {name for run in RUNS.values() for name in flatten(run)}


def train(ranks, stage, precision, chosen):
    """Losses of some steps of two ranks."""
    from trainer.engine.train_step import begin_to_agree, train_step
    from trainer.engine.zero import start_engine
    from trainer.model.bert import build_model
    from trainer.optim.adamw import AdamW

    model = build_model(dataclasses.replace(BERT, **WITHOUT_DROPOUT), seed=3)
    optimizer = AdamW(model.named_parameters())
    optimizer.set_learning_rate(0.01)
    engine = start_engine(model, optimizer, deepspeed_config(chosen, stage, precision), ranks)
    losses = []
    for step in range(STEPS):
        lengths = [[7, 5], [9]] if ranks.rank == 0 else [[12, 3, 4]]
        seeds = range(100 * step + 10 * ranks.rank, 100 * step + 10 * ranks.rank + len(lengths))
        batches = [
            random_micro_batch(*each) for each in zip(lengths, [50] * 2, seeds, strict=False)
        ]
        counts = begin_to_agree(ranks, batches, 0.0)()
        losses.append(train_step(engine, ranks, batches, counts).tolist())
    return losses


def main(folder):
    from trainer.process.ranks import start_ranks, stop_ranks

    ranks = start_ranks()
    found = {}
    for name in RUNS:
        stage, precision = name.split()
        chosen = passed_to_deepspeed(str(folder / f"{name}.json"))
        if "flops_profiler" in chosen:
            chosen["flops_profiler"]["output_file"] = str(folder / "flops.txt")
        found[name] = [train(ranks, int(stage), precision, each) for each in ({}, chosen)]
    (folder / f"losses-{ranks.rank}").write_text(json.dumps(found))
    stop_ranks()


@pytest.mark.engines
def test_no_key_that_deepspeed_is_given_changes_a_loss(tmp_path):
    for name, file in RUNS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(file))
    for process in run_ranks([__file__, str(tmp_path)], 2):
        assert process.returncode == 0, process.stderr
    found = json.loads((tmp_path / "losses-0").read_text())
    for name, (plain, chosen) in found.items():
        tolerance = 1e-6 if "fp32" in name else 1e-3
        torch.testing.assert_close(
            torch.tensor(chosen), torch.tensor(plain), rtol=tolerance, atol=0, msg=name
        )
    assert "Flops Profiler" in (tmp_path / "flops.txt").read_text()


@pytest.mark.engines
def test_a_file_trains_by_the_rates_of_deepspeeds_own_schedule(tmp_path):
    """As it is: comments, a logarithmic warm-up unsaid, old names, ZeRO-2 of round robin."""
    from deepspeed.runtime.lr_schedules import WarmupDecayLR

    (tmp_path / "ds_config.json").write_text("""{
      "train_batch_size": 12,  // of both ranks
      "bfloat16": {"enabled": true},
      "zero_optimization": {"stage": 2, "round_robin_gradients": true, "overlap_comm": true},
      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.98]}},
      "scheduler": {"type": "WarmupDecayLR",
                    "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 3, "total_num_steps": 5}},
    }""")
    data = write_tiny_dataset(tmp_path / "data")
    phases = [{"seq_len": 16}]
    words = write_config(
        tmp_path / "run", data, phases=phases, deepspeed=str(tmp_path / "ds_config.json")
    )
    launch(OURS, words, 2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.02)
    theirs = WarmupDecayLR(optimizer, 5, warmup_max_lr=0.02, warmup_num_steps=3)
    expected = []
    for _ in range(5):
        theirs.step()
        expected += theirs.get_last_lr()
    assert [row["learning_rate"] for row in rows_of(tmp_path / "run")] == pytest.approx(expected)
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (config["precision"], config["zero_stage"]) == ("bf16", 2)
    assert config["optimizer"]["beta2"] == 0.98


if __name__ == "__main__":
    main(Path(sys.argv[1]))
