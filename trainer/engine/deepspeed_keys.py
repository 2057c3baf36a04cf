"""Lists every key that a ds_config.json may have, and how the trainer treats it.

A key is treated in one of these ways. The rule of each key is an entry of `KEYS`.

- It sets a setting of the run, such as the global batch (trainer/engine/deepspeed_settings.py).
- It is passed on to DeepSpeed (`is_passed`).
- It is accepted and ignored, because it cannot change what is trained.
- It may only have the value that this trainer uses anyway (`only`).
- It is refused unless it is switched off (`Refused`).

The key of a section's value is written with dots: `optimizer.params.lr`.
`tests/trainer/test_deepspeed_files.py` compares the table with the fields of the installed
DeepSpeed.
"""

from dataclasses import dataclass
from typing import Any, Literal

# Reasons that several keys share: why a value is refused, and what to do. They end error messages.
_ANY_RANKS = "every number of ranks continues a run; leave it out"
_SUMMED_IN_FP32 = "gradients are summed and reduced in fp32, whole; leave it out"
_ON_DEVICE = (
    'what ZeRO partitions stays on its device; write "device": "none", and "stage": 2 or 3 saves'
    " memory"
)
_NO_OFFLOADING = (
    'what ZeRO partitions stays on its device; leave it out, and "stage": 2 or 3 saves memory'
)
_DATA_PARALLEL = "ranks share the data alone, and every rank computes the whole model; leave it out"
_MODEL_IS_FIXED = "the model is BERT as --model says; leave it out"
_ORDER_IS_FIXED = "the dataset decides which instance comes when (docs/order.md); leave it out"
_NO_LOSS_SCALING = (
    'there is no loss scaling here; write "bf16": {"enabled": true} in its place, or leave it out'
    " to train in fp32"
)
_COMPILING = "--compile true compiles what surrounds attention; leave it out"
_COMPILE_KEYS = (
    "backend", "kwargs", "autoep_non_moe", "free_activation", "free_activation_threshold",
    "offload_activation", "offload_activation_pin_memory", "offload_opt_states", "double_buffer",
    "symmetric_memory", "debug_log", "offload_parameters", "sync_before_reduce",
    "sync_after_reduce", "sync_before_allgather", "sync_after_allgather", "keep_int_input_tensors",
    "keep_all_input_tensors", "passes",
)  # fmt: skip
"""Keys of the section `compile` that matter only if DeepSpeed compiles, which is refused."""
_CHECKPOINTS = "checkpoints are ours, and any number of ranks continues them; leave it out"


@dataclass(frozen=True)
class Key:
    """The rule for a key that a user may set in a file for DeepSpeed.

    Attributes:
        hint: The type of the value, as a type annotation such as `int` or `list[float]`. With `Any`
            the value may have every type.
        least: The least number that is allowed; None if there is no limit.
        is_passed: Whether the value is passed on to DeepSpeed.
        only: The values that are allowed, because this trainer always uses one of them; empty if
            every value is allowed.
        reason: Why a value that is not in `only` is refused, and what to do. It is the end of the
            error message.
    """

    hint: Any
    least: float | None = None
    is_passed: bool = False
    only: tuple[Any, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Refused:
    """The rule for a key that must be switched off: false, null, 0, "none", or empty.

    Attributes:
        reason: Why the key is refused, and what to do. It is the end of the error message.
        switches: For a key that has a section as its value, the keys in the section that switch it
            on. The section counts as off if each of these keys is off or missing. If `switches` is
            empty, the section counts as off if all keys in it are off.
    """

    reason: str
    switches: tuple[str, ...] = ()


_IGNORED = Key(Any)
"""The rule for a key that is accepted with any value and ignored: it changes nothing trained."""
_PASSED_SWITCH = Key(bool, is_passed=True)
_PASSED_COUNT = Key(int, least=1, is_passed=True)
_PASSED_SIZE = Key(int, least=0, is_passed=True)
_IGNORED_SWITCH = Key(bool)


def _only(value: Any, reason: str) -> Key:
    """Returns the rule for a key that may have a single value.

    Args:
        value: The value.
        reason: Why any other value is refused, and what to do.
    """
    hint = float if isinstance(value, float) else type(value)
    return Key(hint, only=(value,), reason=reason)


# Keys of the file's top level, and keys of sections that have no table of their own below.
_TOP: dict[str, Key | Refused] = {
    # Sizes of batches, and clipping: they become settings of the run.
    "train_batch_size": Key(int, least=1),
    "train_micro_batch_size_per_gpu": Key(int, least=1),
    "gradient_accumulation_steps": Key(int, least=1),
    "gradient_clipping": Key(float, least=0),
    # Messages of DeepSpeed.
    "wall_clock_breakdown": _PASSED_SWITCH,
    "memory_breakdown": _PASSED_SWITCH,
    "dump_state": _PASSED_SWITCH,
    "steps_per_print": _IGNORED,
    "log_level": _IGNORED,
    "timers": _IGNORED,
    # How gradients are summed and reduced.
    "communication_data_type": _only("fp32", _SUMMED_IN_FP32),
    "prescale_gradients": _only(False, _SUMMED_IN_FP32),
    "gradient_predivide_factor": _only(1.0, _SUMMED_IN_FP32),
    "gradient_allreduce_op": _only("mean", "the loss is that of the global batch; leave it out"),
    "sparse_gradients": _only(False, _SUMMED_IN_FP32),
    "fp32_allreduce": _IGNORED_SWITCH,
    "allreduce_always_fp32": _IGNORED_SWITCH,
    "seq_parallel_communication_data_type": _IGNORED,
    "data_types.grad_accum_dtype": _only("fp32", _SUMMED_IN_FP32),
    "data_types.param_dtype": Refused("--precision says it; leave it out"),
    "data_types.buffer_dtype": Refused("--precision says it; leave it out"),
    "data_types.keep_in_fp32_modules": Refused("--precision says it; leave it out"),
    # DeepSpeed 0.19 reads these keys without effect, or for parts of it that are not used here.
    "disable_allgather": _IGNORED_SWITCH,
    "managed_gradient_accumulation": _IGNORED_SWITCH,
    "vocabulary_size": _IGNORED,
    "use_data_before_expert_parallelism": _IGNORED_SWITCH,
    "zero_allow_untested_optimizer": _IGNORED_SWITCH,
    "zero_force_ds_cpu_optimizer": _IGNORED_SWITCH,
    "disable_python_gc": Refused("memory would grow for as long as a run takes; leave it out"),
    "dataloader_drop_last": _only(False, "the stream leaves no instance out; leave it out"),
    "aio": _IGNORED,  # used for offloading to NVMe only, which is refused
    # Curves, logs and profiles.
    "tensorboard.enabled": _IGNORED_SWITCH,
    "tensorboard.output_path": Refused("curves are written into the run's folder; leave it out"),
    "tensorboard.job_name": Refused("curves are written into the run's folder; leave it out"),
    "wandb.enabled": _IGNORED_SWITCH,
    "wandb.project": Key(str),
    "wandb.team": Refused("wandb reads it from WANDB_ENTITY; leave it out"),
    "wandb.group": Refused("wandb reads it from WANDB_RUN_GROUP; leave it out"),
    "csv_monitor": Refused("metrics.jsonl has every number; leave it out", ("enabled",)),
    "comet": Refused("TensorBoard's curves are written, and --wandb sends them", ("enabled",)),
    "flops_profiler.enabled": _PASSED_SWITCH,
    "flops_profiler.profile_step": Key(int, least=-1, is_passed=True),
    "flops_profiler.module_depth": Key(int, least=-1, is_passed=True),
    "flops_profiler.top_modules": _PASSED_COUNT,
    "flops_profiler.detailed": _PASSED_SWITCH,
    "flops_profiler.output_file": Key(str, is_passed=True),
    "flops_profiler.recompute_fwd_factor": Key(float, least=0, is_passed=True),
    "comms_logger.enabled": _PASSED_SWITCH,
    "comms_logger.verbose": _PASSED_SWITCH,
    "comms_logger.prof_all": _PASSED_SWITCH,
    "comms_logger.prof_ops": Key(list[str], is_passed=True),
    "comms_logger.debug": _PASSED_SWITCH,
    # Methods of training other than BERT's on ranks that share the data.
    "amp": Refused(_NO_LOSS_SCALING, ("enabled",)),
    "torch_autocast": Refused("--precision bf16 does it; leave it out", ("enabled",)),
    "curriculum_learning": Refused(_ORDER_IS_FIXED, ("enabled",)),
    "data_efficiency": Refused(_ORDER_IS_FIXED, ("enabled",)),
    "progressive_layer_drop": Refused(_MODEL_IS_FIXED, ("enabled",)),
    "eigenvalue": Refused(_MODEL_IS_FIXED, ("enabled",)),
    "quantize_training": Refused(_MODEL_IS_FIXED, ("enabled",)),
    "compression_training": Refused(_MODEL_IS_FIXED),
    "weight_quantization": Refused(_MODEL_IS_FIXED),
    "sparse_attention": Refused(_MODEL_IS_FIXED),
    "hybrid_engine": Refused("a run only trains; leave it out", ("enabled",)),
    "graph_harvesting": _only(False, _COMPILING),
    **{f"compile.{name}": _IGNORED for name in _COMPILE_KEYS},
    "compile.deepcompile": _only(False, _COMPILING),
    "compile.enabled": _only(False, _COMPILING),
    "compile.disable": _only(True, _COMPILING),
    "tensor_parallel.autotp_size": Key(int, only=(0, 1), reason=_DATA_PARALLEL),
    "tensor_parallel.tp_size": Key(int, only=(1,), reason=_DATA_PARALLEL),
    "sequence_parallel_size": Key(int, only=(1,), reason=_DATA_PARALLEL),
    "pipeline": Refused(_DATA_PARALLEL),
    "expert_parallel": Refused(_DATA_PARALLEL, ("enabled",)),
    "activation_checkpointing.partition_activations": _only(False, _DATA_PARALLEL),
    "activation_checkpointing.cpu_checkpointing": _only(
        False, "activations stay on the device; --activation_checkpointing computes them again"
    ),
    "activation_checkpointing.contiguous_memory_optimization": _only(
        False, "--activation_checkpointing keeps each layer's input by itself; leave it out"
    ),
    "activation_checkpointing.number_checkpoints": _IGNORED,
    "activation_checkpointing.synchronize_checkpoint_boundary": _IGNORED_SWITCH,
    "activation_checkpointing.profile": _IGNORED_SWITCH,
    "autotuning": Refused("`python -m trainer plan` says what fits; leave it out", ("enabled",)),
    "elasticity": Refused(_ANY_RANKS, ("enabled",)),
    # Checkpoints.
    "checkpoint.tag_validation": _IGNORED,
    "checkpoint.load_universal": _only(False, "--init_from opens a universal checkpoint"),
    "checkpoint.use_node_local_storage": _only(False, _CHECKPOINTS),
    "checkpoint.parallel_write": _IGNORED,
    "checkpoint.writer": Refused(_CHECKPOINTS),
    "nebula": Refused(_CHECKPOINTS, ("enabled",)),
    "datastates": Refused(_CHECKPOINTS),
    # The old form of the section zero_optimization was true or false, with this key beside it.
    "allgather_size": Key(int, least=1),
}  # fmt: skip

_ZERO: dict[str, Key | Refused] = {
    "stage": Key(Literal[0, 1, 2, 3]),
    "reduce_bucket_size": _PASSED_COUNT,
    "allgather_bucket_size": _PASSED_COUNT,
    "reduce_scatter": _PASSED_SWITCH,
    "contiguous_gradients": _PASSED_SWITCH,
    "overlap_comm": _PASSED_SWITCH,
    "use_multi_rank_bucket_allreduce": _PASSED_SWITCH,
    "parameter_alignment": _PASSED_SWITCH,
    "ignore_unused_parameters": _PASSED_SWITCH,
    "stage3_prefetch_bucket_size": _PASSED_SIZE,
    "stage3_param_persistence_threshold": _PASSED_SIZE,
    "stage3_model_persistence_threshold": _PASSED_SIZE,
    "stage3_max_live_parameters": _PASSED_SIZE,
    "stage3_max_reuse_distance": _PASSED_SIZE,
    "stage3_module_granularity_threshold": _PASSED_SIZE,
    "stage3_use_all_reduce_for_fetch_params": _PASSED_SWITCH,
    "stage3_allgather_sequential": _PASSED_SWITCH,
    "memory_efficient_linear": _PASSED_SWITCH,
    "override_module_apply": _PASSED_SWITCH,
    "log_trace_cache_warnings": _PASSED_SWITCH,
    "enable_sanity_checks": _PASSED_SWITCH,
    # Ignored: clipping has to see all gradients at once, so all tensors form one group.
    "sub_group_size": Key(int, least=0),
    # Ignored: it balances copies of gradients to the CPU over ranks, and nothing is copied there.
    "round_robin_gradients": _IGNORED_SWITCH,
    "allgather_partitions": _IGNORED_SWITCH,  # DeepSpeed reads it and does not use it
    "compute_grad_norm": _IGNORED_SWITCH,  # our optimizer computes the norm that is logged
    # Ignored: DeepSpeed's own checkpoints, which are never written.
    "load_from_fp32_weights": _IGNORED_SWITCH,
    "elastic_checkpoint": _IGNORED_SWITCH,
    "pipeline_loading_checkpoint": _IGNORED_SWITCH,
    "stage3_gather_16bit_weights_on_model_save": _IGNORED_SWITCH,
    "stage3_gather_fp16_weights_on_model_save": _IGNORED_SWITCH,
    # Offloading to CPUs or disks, all of which is refused.
    "cpu_offload_use_pin_memory": _IGNORED_SWITCH,
    "save_muon_momentum_buffer_in_memory": _IGNORED_SWITCH,
    "offload_param": Refused(_ON_DEVICE, ("device",)),
    "offload_optimizer": Refused(_ON_DEVICE, ("device",)),
    "cpu_offload": Refused(_NO_OFFLOADING),
    "cpu_offload_param": Refused(_NO_OFFLOADING),
    "cpu_offload_params": Refused(_NO_OFFLOADING),
    "zenflow": Refused(_NO_OFFLOADING),
    "legacy_stage1": _only(False, "DeepSpeed has it no more; leave it out"),
    "grad_hooks": _IGNORED_SWITCH,
    "zero_quantized_weights": _only(False, _SUMMED_IN_FP32),
    "zero_quantized_nontrainable_weights": _only(False, _SUMMED_IN_FP32),
    "zero_quantized_gradients": _only(False, _SUMMED_IN_FP32),
    "zeropp_loco_param": Refused(_SUMMED_IN_FP32),
    "zero_hpz_partition_size": Key(int, only=(0, 1), reason="every rank has a part; leave it out"),
    "mics_shard_size": Key(int, only=(-1, 0), reason="every rank has a part; leave it out"),
    "mics_hierarchical_params_gather": _only(False, "every rank has a part; leave it out"),
    "leaf_module": Refused(_MODEL_IS_FIXED),
}  # fmt: skip

ALIASES = {
    f"zero_optimization.{name}": f"zero_optimization.stage3_{name}"
    for name in (
        "prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold",
        "max_live_parameters", "max_reuse_distance", "gather_16bit_weights_on_model_save",
        "module_granularity_threshold", "use_all_reduce_for_fetch_params", "allgather_sequential",
    )
} | {"bfloat16.enabled": "bf16.enabled"}  # fmt: skip
"""Other names that DeepSpeed accepts for a key, and the name of the key."""

_LOSS_SCALING = (
    "auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis",
    "consecutive_hysteresis", "min_loss_scale", "opt_level",
)  # fmt: skip
_FP16: dict[str, Key | Refused] = {
    "enabled": _only(False, _NO_LOSS_SCALING),
    "fp16_master_weights_and_grads": _only(False, _SUMMED_IN_FP32),
    **dict.fromkeys(_LOSS_SCALING, _IGNORED),
}
_BF16: dict[str, Key | Refused] = {
    "enabled": Key(bool),
    "immediate_grad_update": _IGNORED_SWITCH,
    # Ignored: our optimizer takes no step in any case if the gradient is not finite.
    "check_grad_overflow": _IGNORED_SWITCH,
    "check_overflow": _IGNORED_SWITCH,
    "accumulate_grads_via_hooks": _IGNORED_SWITCH,
    "bf16_master_weights_and_grads": _only(False, "weights are updated in fp32; leave it out"),
    "bf16_optimizer_states": _only(False, "moments are kept in fp32; leave it out"),
    **dict.fromkeys(_LOSS_SCALING, _IGNORED),
}
_OPTIMIZER: dict[str, Key | Refused] = {
    "type": Key(str),
    "legacy_fusion": _IGNORED_SWITCH,
    "adam_w_mode": _IGNORED_SWITCH,  # DeepSpeed reads this key in params only
    "params.lr": Key(float, least=0),
    "params.betas": Key(list[float]),
    "params.eps": Key(float, least=0),
    "params.weight_decay": Key(float, least=0),
    "params.bias_correction": Key(bool),
    "params.max_grad_norm": Key(float, least=0),
    "params.adam_w_mode": Key(bool),
    "params.amsgrad": _only(False, "there is no such variant; leave it out"),
    "params.maximize": _only(False, "a loss is made smaller; leave it out"),
    # Ignored: they choose between implementations of the same update.
    "params.torch_adam": _IGNORED_SWITCH,
    "params.fused": _IGNORED_SWITCH,
    "params.foreach": _IGNORED_SWITCH,
    "params.capturable": _IGNORED_SWITCH,
    "params.set_grad_none": _IGNORED_SWITCH,
    "params.ns_method": _IGNORED,
    "params.fp32_optimizer_states": _only(True, "moments are kept in fp32; leave it out"),
    # LAMB only. Its trust ratios have no bounds here, but files that write DeepSpeed's default
    # bounds are accepted.
    "params.max_coeff": _only(10.0, "Lamb has no such setting here; leave it out"),
    "params.min_coeff": _only(0.01, "Lamb has no such setting here; leave it out"),
    "params.eps_inside_sqrt": _only(False, "eps is added to the root; leave it out"),
    # Muon only.
    "params.adam_lr": Key(float, least=0),
    "params.muon_lr": Key(float, least=0),
    "params.momentum": _only(0.95, "Muon has 0.95 here; leave it out"),
    "params.nesterov": _only(True, "Muon's momentum is Nesterov's; leave it out"),
    "params.ns_steps": Key(int, only=(5,), reason="Muon makes 5 steps here; leave it out"),
}  # fmt: skip
_SCHEDULER: dict[str, Key | Refused] = {
    "type": Key(str),
    "params.warmup_min_lr": Key(float, least=0),
    "params.warmup_max_lr": Key(float, least=0),
    "params.warmup_num_steps": Key(int, least=1),
    "params.warmup_type": Key(Literal["log", "linear"]),
    "params.total_num_steps": Key(int, least=1),
    "params.warmup_min_ratio": Key(float, least=0),
    "params.cos_min_ratio": Key(float, least=0),
    "params.last_batch_iteration": _only(-1, "a run that goes on finds its own step; leave it out"),
}

_SECTIONS = {
    "zero_optimization": _ZERO,
    "fp16": _FP16,
    "bf16": _BF16,
    "bfloat16": _BF16,
    "optimizer": _OPTIMIZER,
    "scheduler": _SCHEDULER,
}
KEYS: dict[str, Key | Refused] = _TOP | {
    f"{section}.{name}": key for section, keys in _SECTIONS.items() for name, key in keys.items()
}
"""The rule of every key, by dotted names."""
SECTIONS = {name[:place] for name in KEYS for place in range(len(name)) if name[place] == "."}
"""Dotted names of all sections: the keys whose values hold keys again."""
SWITCHED = ("tensorboard", "wandb")
"""Sections whose other keys DeepSpeed reads only if their key `enabled` is true."""
