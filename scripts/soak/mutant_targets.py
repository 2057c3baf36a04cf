"""Which modules are mutated and which tests are to notice; the changes that somebody meant; those nobody can notice."""

from dataclasses import dataclass

_INSTANCES = (
    "pipeline/test_pairs.py",
    "pipeline/test_masking.py",
    "pipeline/test_compiled_instances.py",
)
_DATASET = ("pipeline/test_dataset.py", "pipeline/test_tampering.py", "pipeline/test_growing.py")
_ORDER = ("trainer/test_order.py", "trainer/test_step.py", "trainer/test_mixture.py")
_OPTIMIZERS = ("trainer/test_optim.py", "trainer/test_engine.py")
_CHECKPOINTS = (
    "trainer/test_checkpoint_pieces.py",
    "trainer/test_durability.py",
    "trainer/test_resume.py",
    "trainer/test_uploads.py",
    "trainer/test_checkpoint.py",
    "stores/test_checkpoint_store.py",
)

TARGETS: dict[str, tuple[str, ...]] = {
    "tokenizer/wordpiece.py": ("tokenizer/test_wordpiece.py", "tokenizer/test_encode.py"),
    "tokenizer/learn.py": ("tokenizer/test_learn.py",),
    "tokenizer/vocab.py": ("tokenizer/test_vocab.py", "tokenizer/test_wordpiece.py"),
    "pipeline/instances/pairs.py": (*_INSTANCES, "pipeline/test_exact_balance.py"),
    "pipeline/instances/masking.py": _INSTANCES,
    "pipeline/instances/gather.py": _INSTANCES,
    "pipeline/seeds.py": (*_INSTANCES, "pipeline/test_sources.py"),
    "pipeline/storage/folder.py": (
        "pipeline/test_folder.py",
        "pipeline/test_names.py",
        "project/test_secret_values.py",
        "stores/test_faults.py",
    ),
    "pipeline/tokens/bucket_seals.py": ("pipeline/test_seals.py",),
    "pipeline/shards/seal.py": ("pipeline/test_seals.py",),
    "pipeline/shards/coverage.py": ("pipeline/test_seals.py",),
    "pipeline/tokens/buckets.py": ("pipeline/test_buckets.py", "pipeline/test_exchange.py"),
    "pipeline/tokens/held_out.py": ("pipeline/test_held_out.py", "pipeline/test_buckets.py"),
    "pipeline/instances/build_bucket.py": (
        "pipeline/test_exchange.py",
        "pipeline/test_sources.py",
        "pipeline/test_build.py",
    ),
    "pipeline/jobs/exchange.py": (
        "pipeline/test_seals.py",
        "pipeline/test_exchange.py",
        "pipeline/test_dropped_documents.py",
    ),
    "pipeline/jobs/shards_job.py": (
        "pipeline/test_seals.py",
        "pipeline/test_publish.py",
        "pipeline/test_exchange.py",
        "pipeline/test_build.py",
        "pipeline/test_source_builds.py",
    ),
    "pipeline/stages/publish.py": ("pipeline/test_publish.py", "pipeline/test_growing.py"),
    "pipeline/shards/block.py": ("pipeline/test_block.py", "pipeline/test_dataset.py"),
    "pipeline/shards/verify.py": (
        "pipeline/test_seals.py",
        *_DATASET,
        "pipeline/test_deep_verify.py",
        "pipeline/test_dropped_documents.py",
    ),
    "pipeline/shards/manifest.py": _DATASET,
    "pipeline/shards/table_checks.py": ("pipeline/test_table_checks.py", *_DATASET),
    "trainer/order/order.py": _ORDER,
    "trainer/order/share.py": _ORDER,
    "trainer/order/state.py": _ORDER,
    "trainer/batches/pack.py": ("trainer/test_step.py", "trainer/test_objectives.py"),
    "trainer/reading/cache.py": ("trainer/test_cache.py",),
    "trainer/optim/lamb.py": _OPTIMIZERS,
    "trainer/optim/adamw.py": _OPTIMIZERS,
    "trainer/optim/schedule.py": ("trainer/test_optim.py",),
    "trainer/optim/sharded.py": _OPTIMIZERS,
    "trainer/checkpoints/write.py": _CHECKPOINTS,
    "trainer/checkpoints/read.py": _CHECKPOINTS,
    "trainer/checkpoints/resume.py": (*_CHECKPOINTS, "trainer/test_recovery.py"),
    "trainer/checkpoints/store.py": _CHECKPOINTS,
    "trainer/engine/train_step.py": (
        "trainer/test_engine.py",
        "trainer/test_guards.py",
        "trainer/test_same_losses.py",
    ),
    "trainer/guards/spike_guard.py": ("trainer/test_guards.py",),
    "trainer/runs/metrics.py": ("trainer/test_metrics.py",),
}
"""Module: the tests, below tests/, that a change of it is held against."""


@dataclass(frozen=True)
class Meant:
    """A change that somebody thought of: `old` stands once in the file and becomes `new`."""

    path: str
    old: str
    new: str
    why: str


MEANT: tuple[Meant, ...] = (
    Meant(
        "trainer/engine/train_step.py",
        "{phase}/{step}/{rank}",
        "{phase}/{rank}",
        "dropout is seeded without its step",
    ),
    Meant(
        "trainer/engine/train_step.py",
        "{phase}/{step}/{rank}",
        "{phase}/{step}",
        "dropout is seeded without its rank",
    ),
    Meant(
        "trainer/checkpoints/write.py",
        "            (folder / COMMITTED).unlink(missing_ok=True)\n",
        "",
        "a checkpoint is deleted without its marker going first",
    ),
    Meant(
        "trainer/checkpoints/write.py",
        "    (folder / STATE).write_text(",
        '    (folder / COMMITTED).write_text("{}")\n    (folder / STATE).write_text(',
        "a checkpoint's marker is there before its files",
    ),
    Meant(
        "trainer/checkpoints/write.py",
        "    make_durable(path)\n",
        "",
        "a checkpoint's tensors are not brought to the disk",
    ),
    Meant(
        "trainer/checkpoints/write.py",
        "    make_durable(folder / COMMITTED)\n",
        "",
        "a checkpoint's marker is not brought to the disk",
    ),
    Meant(
        "trainer/checkpoints/read.py",
        "    if lacking:",
        "    if False:",
        "half of a checkpoint is loaded",
    ),
    Meant(
        "trainer/checkpoints/resume.py",
        "if before is None or step_of(each) < before",
        "if before is None or step_of(each) > before",
        "a run goes back to a later checkpoint",
    ),
    Meant(
        "trainer/checkpoints/resume.py",
        "            if skip_damaged:\n",
        "            if not skip_damaged:\n",
        "a checkpoint is looked at only where damaged ones stop the run",
    ),
    Meant(
        "pipeline/shards/verify.py",
        "    if found != expected:\n",
        "    if False:\n",
        "counts of blocks are not compared with the block table",
    ),
    Meant(
        "pipeline/jobs/shards_job.py",
        "        self.output.write(task.name, tar)\n"
        "        record = format_record(ShardRecord(self.settings_hash, shard, table))\n"
        "        self.output.write(record_name(task.name), record)\n",
        "        record = format_record(ShardRecord(self.settings_hash, shard, table))\n"
        "        self.output.write(record_name(task.name), record)\n"
        "        self.output.write(task.name, tar)\n",
        "a shard's record is written before the shard",
    ),
)

EQUIVALENT: dict[str, str] = {
    "pipeline/shards/table_checks.py _are_plausible 0 to 1: 0 #1": (
        "rows are looked at one by one, which takes longer and says the same"
    ),
    "trainer/order/state.py StreamState.first_position 1 to 2: 1 #0": (
        "the first of two positions is the first of one"
    ),
    "pipeline/shards/verify.py  1 to 2: 1 #0": "rows that are read at once",
    "pipeline/jobs/shards_job.py ShardBuilder._write_shard Gt to GtE: self.num_sources > 1 #0": (
        "counts what is not written"
    ),
    "pipeline/shards/table_checks.py _are_plausible LtE to Lt: shard.tokens <= most #0": (
        "rows are looked at one by one, which takes longer and says the same"
    ),
    "pipeline/shards/table_checks.py _are_plausible not bool(np.all((values >= least) & (values <= most))) to"
    " not not bool(np.all((values >= least) & (values <= most))):"
    " if not bool(np.all((values >= least) & (values <= most))): #0": (
        "rows are looked at one by one, which takes longer and says the same"
    ),
    "trainer/optim/sharded.py ShardedOptimizer.step left out: self.views(name) #0": "made when asked for",
    "pipeline/tokens/held_out.py LowestRows.finish 1 to 2: 1 #3": "keeps more documents than are looked at",
    "pipeline/tokens/held_out.py LowestRows.add LtE to Lt: rows['tokens'] <= self._most_tokens #0": (
        "a document of as many tokens as the split leaves room for no second, and one is no split"
    ),
    "pipeline/tokens/buckets.py choose_num_buckets Gt to GtE: num_buckets > 1 #1": (
        "a corpus has two documents at least"
    ),
}
"""Name of a mutant: why no test can notice it."""
