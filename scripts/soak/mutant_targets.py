"""Which modules are mutated and which tests are to notice; the changes that somebody meant; those nobody can notice."""

from dataclasses import dataclass

_INSTANCES = ("pipeline/test_pairs.py", "pipeline/test_masking.py", "pipeline/test_compiled_instances.py")
_DATASET = ("pipeline/test_dataset.py", "pipeline/test_tampering.py", "pipeline/test_growing.py")
_ORDER = ("trainer/test_order.py", "trainer/test_step.py", "trainer/test_mixture.py")
_OPTIMIZERS = ("trainer/test_optim.py", "trainer/test_engine.py")
_CHECKPOINTS = ("trainer/test_checkpoint.py", "trainer/test_uploads.py", "stores/test_checkpoint_store.py")

TARGETS: dict[str, tuple[str, ...]] = {
    "tokenizer/wordpiece.py": ("tokenizer/test_wordpiece.py", "tokenizer/test_encode.py"),
    "tokenizer/learn.py": ("tokenizer/test_learn.py",),
    "tokenizer/vocab.py": ("tokenizer/test_vocab.py", "tokenizer/test_wordpiece.py"),
    "pipeline/pairs.py": (*_INSTANCES, "pipeline/test_exact_balance.py"),
    "pipeline/masking.py": _INSTANCES,
    "pipeline/gather.py": _INSTANCES,
    "pipeline/seeds.py": (*_INSTANCES, "pipeline/test_sources.py"),
    "pipeline/buckets.py": ("pipeline/test_buckets.py", "pipeline/test_exchange.py"),
    "pipeline/build_bucket.py": ("pipeline/test_exchange.py", "pipeline/test_sources.py", "pipeline/test_build.py"),
    "pipeline/exchange.py": ("pipeline/test_exchange.py", "pipeline/test_dropped_documents.py"),
    "pipeline/shards_job.py": ("pipeline/test_publish.py", "pipeline/test_exchange.py", "pipeline/test_build.py"),
    "pipeline/publish.py": ("pipeline/test_publish.py", "pipeline/test_growing.py"),
    "pipeline/shards/block.py": ("pipeline/test_block.py", "pipeline/test_dataset.py"),
    "pipeline/shards/verify.py": (*_DATASET, "pipeline/test_deep_verify.py"),
    "pipeline/shards/manifest.py": _DATASET,
    "pipeline/shards/table_checks.py": _DATASET,
    "trainer/stream/order.py": _ORDER,
    "trainer/stream/share.py": _ORDER,
    "trainer/stream/state.py": _ORDER,
    "trainer/stream/packing.py": ("trainer/test_step.py", "trainer/test_objectives.py"),
    "trainer/stream/cache.py": ("trainer/test_cache.py",),
    "trainer/optim/lamb.py": _OPTIMIZERS,
    "trainer/optim/adamw.py": _OPTIMIZERS,
    "trainer/optim/schedule.py": ("trainer/test_optim.py",),
    "trainer/optim/sharded.py": _OPTIMIZERS,
    "trainer/checkpoints/write.py": _CHECKPOINTS,
    "trainer/checkpoints/read.py": _CHECKPOINTS,
    "trainer/checkpoints/resume.py": (*_CHECKPOINTS, "trainer/test_recovery.py"),
    "trainer/checkpoints/store.py": _CHECKPOINTS,
    "trainer/engine.py": ("trainer/test_engine.py", "trainer/test_guards.py", "trainer/test_same_losses.py"),
    "trainer/guards/spike_guard.py": ("trainer/test_guards.py",),
    "trainer/metrics.py": ("trainer/test_metrics.py",),
}
"""Module: the tests, below tests/, that a change of it is held against."""


@dataclass(frozen=True)
class Meant:
    """A change that somebody thought of: `old` stands once in the file and becomes `new`."""

    path: str
    old: str
    new: str
    why: str


MEANT: tuple[Meant, ...] = ()

EQUIVALENT: dict[str, str] = {}
"""Name of a mutant: why no test can notice it."""
