"""The shards stage: runs the shards job over the shards that are not there yet, and publishes what is finished.

manifest.json comes after everything it speaks of; lengths and passes may be added to a finished dataset.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import apache_beam as beam
import numpy as np

from pipeline.buckets import NUM_PREFIXES, Bucket, choose_num_buckets, choose_validation, plan_buckets, prefix_of
from pipeline.build_bucket import InstanceRule
from pipeline.build_tokens import TokenStore
from pipeline.build_vocab import write_tokenizer
from pipeline.dataset_ids import write_document_ids
from pipeline.describe import describe_dataset
from pipeline.exchange import ExchangeByBucket, ExchangeMode, ShardTask, TokenFolder, plan_tasks
from pipeline.index_rows import iterate_kept_ids
from pipeline.masking import MaskingRule
from pipeline.publish import (
    SETTINGS,
    Built,
    PassPublisher,
    planned_groups,
    publish_dataset,
    publish_plan,
    remove_leftovers,
)
from pipeline.run_beam import choose_exchange, pipeline_options, run_graph
from pipeline.settings import BuildSettings, describe_changes
from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.growing import UNKNOWN_HASH
from pipeline.shards.manifest import DOCUMENT_IDS, MANIFEST
from pipeline.shards.records import json_bytes
from pipeline.shards.storage import (
    file_exists,
    list_files,
    open_filesystem,
    read_file,
    remove_files,
    write_atomic,
)
from pipeline.shards_job import BuildShards, ShardBuilder, parse_record, record_name
from pipeline.sources import apply_weights
from pipeline.token_index import Totals
from tokenizer.vocab import CONTINUATION, Vocabulary


def make_shards(
    settings: BuildSettings, vocabulary: Vocabulary, store: TokenStore, beam_arguments: Sequence[str]
) -> Dataset:
    """Builds every shard that is missing and publishes the dataset.

    Raises:
        ValueError: The folder holds a dataset of other settings or documents, or there are too few documents.
    """
    filesystem, root = open_filesystem(settings.output, settings.filesystem_options())
    content = settings.content(vocabulary.sha256, store.totals.documents_hash, store.choice)
    tasks = plan_tasks(choose_buckets(settings, store.totals), settings.seq_lens, settings.passes)
    built = _claim_folder(filesystem, root, settings, content)
    built = _without_lost(filesystem, root, built, tasks)
    built |= _read_records(filesystem, root, [task for task in tasks if task.name not in built])
    missing = [task for task in tasks if task.name not in built]
    if not missing and file_exists(filesystem, f"{root}/{MANIFEST}"):
        _write_document_ids(settings, filesystem, root, store)
        remove_leftovers(filesystem, root)  # a kill may have come between the manifest and this
        return open_dataset(settings.output, settings.filesystem_options())
    described = describe_dataset(settings, vocabulary, store, [])
    plan = dataclasses.replace(described, groups=planned_groups(tasks, built), root_hash=UNKNOWN_HASH)
    write_tokenizer(filesystem, root, vocabulary, settings.lower_case)
    publish_plan(filesystem, root, plan)
    # A record whose shard is gone or cut must not tell a worker that there is nothing to do.
    remove_files(filesystem, root, sorted(_records_of(missing) & list_files(filesystem, root).keys()))
    publisher = PassPublisher(filesystem, root, tasks, built, plan.settings_hash)
    _run_job(settings, vocabulary, store, missing, publisher.look, beam_arguments)
    built |= publisher.built
    built |= _read_records(filesystem, root, [task for task in missing if task.name not in built])
    lost = [task.name for task in tasks if task.name not in built]
    assert not lost, f"the job ended without an error but {len(lost)} shards are missing, such as {lost[:1]}"
    _write_document_ids(settings, filesystem, root, store)
    shards = [shard for shard, _ in built.values()]
    publish_dataset(filesystem, root, built, describe_dataset(settings, vocabulary, store, shards))
    return open_dataset(settings.output, settings.filesystem_options())


def _write_document_ids(settings: BuildSettings, filesystem: Any, root: str, store: TokenStore) -> None:
    """Writes documents.ids, unless it is there."""
    if file_exists(filesystem, f"{root}/{DOCUMENT_IDS}"):
        return
    tokens, folder = open_filesystem(settings.tokens_folder, settings.filesystem_options())
    num_sources = len(settings.corpus)
    ids = iterate_kept_ids(tokens, folder, store.part_names, num_sources, has_dropped=store.has_dropped)
    write_document_ids(filesystem, root, ids)


def choose_buckets(settings: BuildSettings, totals: Totals) -> list[Bucket]:
    """The validation bucket and the train buckets of a corpus."""
    lowest = [bytes.fromhex(each) for each in totals.lowest_ids]
    fraction, most_tokens = settings.validation_fraction, settings.validation_tokens
    last = choose_validation(lowest, totals.lowest_tokens, totals.documents, fraction, most_tokens)
    by_prefix = np.array(totals.documents_by_prefix, np.int64)
    held_out = [prefix_of(each) for each in lowest if last is not None and each <= last]
    by_prefix -= np.bincount(held_out, minlength=NUM_PREFIXES).astype(np.int64)
    sizes = ([getattr(source, name) for source in totals.sources] for name in ("documents", "cleaned_bytes"))
    used_bytes, used = apply_weights(settings.weights, *sizes)
    number = choose_num_buckets(by_prefix, used_bytes, settings.num_buckets, "num_buckets", used)
    return plan_buckets(number, last)


def _claim_folder(filesystem: Any, root: str, settings: BuildSettings, content: Mapping[str, Any]) -> Built:
    """The shards of a finished dataset of the same content; a folder of another content is refused."""
    found: Mapping[str, Any] | None = None
    built: Built = {}
    if file_exists(filesystem, f"{root}/{MANIFEST}"):
        dataset = open_dataset(settings.output, settings.filesystem_options())
        found = dataset.manifest.settings
        built = {shard.name: (shard, dataset.blocks(shard)) for shard in dataset.all_shards}
    elif file_exists(filesystem, f"{root}/{SETTINGS}"):
        found = json.loads(read_file(filesystem, f"{root}/{SETTINGS}"))
    if found is not None and (changed := describe_changes(found, content)):
        raise ValueError(f"{settings.output} holds shards of other settings: {changed}; give another --output")
    if not built:
        write_atomic(filesystem, f"{root}/{SETTINGS}", json_bytes(content))
    return built


def _without_lost(filesystem: Any, root: str, built: Built, tasks: Sequence[ShardTask]) -> Built:
    """Leaves out the shards of a finished dataset that are gone or of another size, where a task can build them."""
    files = list_files(filesystem, root) if built else {}
    lost = {task.name for task in tasks if task.name in built and files.get(task.name) != built[task.name][0].num_bytes}
    return {name: rows for name, rows in built.items() if name not in lost}


def _read_records(filesystem: Any, root: str, tasks: Sequence[ShardTask]) -> Built:
    """The finished ones among the tasks: those whose record is there and whose shard has its size."""
    files = list_files(filesystem, root)
    names = [task.name for task in tasks if record_name(task.name) in files]
    records = [parse_record(read_file(filesystem, f"{root}/{record_name(name)}")) for name in names]
    return {shard.name: (shard, table) for shard, table in records if files.get(shard.name) == shard.num_bytes}


def _run_job(
    settings: BuildSettings,
    vocabulary: Vocabulary,
    store: TokenStore,
    missing: Sequence[ShardTask],
    count_finished: Callable[[], int],
    beam_arguments: Sequence[str],
) -> None:
    options = pipeline_options(settings.workers, beam_arguments)
    mode = choose_exchange(settings.exchange, options)

    def build(pipeline: beam.Pipeline) -> None:
        add_shards_graph(pipeline, settings, vocabulary, store.part_names, missing, mode, has_dropped=store.has_dropped)

    run_graph("shards", build, options, len(missing), count_finished)


def add_shards_graph(
    pipeline: beam.Pipeline,
    settings: BuildSettings,
    vocabulary: Vocabulary,
    part_names: Sequence[str],
    tasks: Sequence[ShardTask],
    mode: ExchangeMode,
    *,
    has_dropped: bool = False,
) -> None:
    """The whole shards job: token parts to shards."""
    options = settings.filesystem_options()
    folder = TokenFolder(settings.tokens_folder, vocabulary.dtype.name, options, has_dropped)
    rules = {seq_len: instance_rule(settings, vocabulary, seq_len) for seq_len in settings.seq_lens}
    builder = ShardBuilder(settings.output, rules, len(settings.corpus), options)
    _ = pipeline | ExchangeByBucket(mode, folder, part_names, tasks) | BuildShards(builder)


def _records_of(tasks: Sequence[ShardTask]) -> set[str]:
    return {record_name(task.name) for task in tasks}


def instance_rule(settings: BuildSettings, vocabulary: Vocabulary, seq_len: int) -> InstanceRule:
    """How instances of one length are made from these settings."""
    is_continuation = None
    if settings.whole_word_masking:
        is_continuation = np.array([token.startswith(CONTINUATION) for token in vocabulary.tokens])
    masking = MaskingRule(
        mask_id=vocabulary.mask_id,
        vocab_size=len(vocabulary),
        max_predictions=settings.predictions_for(seq_len),
        masked_lm_prob=settings.masked_lm_prob,
        is_continuation=is_continuation,
    )
    return InstanceRule(
        seq_len=seq_len,
        seed=settings.seed,
        short_seq_prob=settings.short_seq_prob,
        cls_id=vocabulary.cls_id,
        sep_id=vocabulary.sep_id,
        masking=masking,
        nsp_balance=settings.nsp_balance,
        weights=settings.weights,
    )
