"""The shards stage: builds the shards that are not there yet, and publishes what is finished.

manifest.json comes after everything it speaks of; lengths and passes may be added to a finished
dataset.
"""

import dataclasses
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pipeline.documents.sources import apply_weights
from pipeline.instances.build_bucket import InstanceRule
from pipeline.instances.masking import masking_rule
from pipeline.jobs.exchange import ShardTask, plan_names, plan_tasks
from pipeline.jobs.run_beam import Outputs
from pipeline.jobs.shard_records import record_name
from pipeline.jobs.shards_job import ShardBuilder, run_shards_job
from pipeline.settings import BuildSettings, describe_changes
from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.growing import PLAN, UNKNOWN_HASH
from pipeline.shards.manifest import DOCUMENT_IDS, MANIFEST
from pipeline.shards.records import json_bytes
from pipeline.shards.seal import Seal
from pipeline.stages.build_tokens import TokenStore
from pipeline.stages.build_vocab import write_tokenizer
from pipeline.stages.describe import describe_dataset
from pipeline.stages.publish import (
    SETTINGS,
    Built,
    PassPublisher,
    planned_groups,
    publish_dataset,
    read_records,
    remove_leftovers,
    remove_unfinished,
)
from pipeline.stages.soundness import check_random_next
from pipeline.storage.folder import Folder
from pipeline.storage.json_files import read_object
from pipeline.tokens.buckets import (
    Bucket,
    BucketContents,
    BucketSums,
    choose_num_buckets,
    plan_buckets,
    prefix_of,
    total_seal,
)
from pipeline.tokens.dataset_ids import write_document_ids
from pipeline.tokens.held_out import HeldOut, choose_held_out, split_ids
from pipeline.tokens.token_index import TokenParts, Totals, iterate_kept, open_index, pack_ids
from tokenizer.vocab import Vocabulary


def make_shards(
    settings: BuildSettings,
    vocabulary: Vocabulary,
    store: TokenStore,
    beam_arguments: Sequence[str],
) -> Dataset:
    """Builds every shard that is missing and publishes the dataset.

    Raises:
        ValueError: The folder holds a dataset of other settings or documents, there are too few
            documents, or a runner or store did not deliver every document of every bucket once.
    """
    folder = settings.open_output()
    content = settings.content(vocabulary.sha256, store.totals.documents_hash, store.deciding)
    held_out = choose_held_out(
        store.totals.sources, settings.validation_fraction, settings.validation_tokens
    )
    buckets = choose_buckets(settings, store.totals, held_out)
    names = plan_names(buckets, settings.seq_lens, settings.passes)
    built = _without_lost(folder, _claim_folder(folder, settings, content), names)
    if folder.exists(MANIFEST) and built.keys() >= set(names):
        if not folder.exists(DOCUMENT_IDS):
            _seal_buckets(settings, store, buckets, held_out, folder)
        remove_leftovers(folder)  # a kill may have come between the manifest and this
        return open_dataset(settings.output, settings.filesystem_options())
    contents = _seal_buckets(settings, store, buckets, held_out, folder)
    tasks = plan_tasks(buckets, settings.seq_lens, settings.passes, contents)
    seal = total_seal(contents)
    _build_missing(settings, vocabulary, store, held_out, tasks, seal, built, beam_arguments)
    return open_dataset(settings.output, settings.filesystem_options())


def _build_missing(
    settings: BuildSettings,
    vocabulary: Vocabulary,
    store: TokenStore,
    held_out: HeldOut,
    tasks: Sequence[ShardTask],
    seal: Seal,
    built: Built,
    beam_arguments: Sequence[str],
) -> None:
    """Builds those of the tasks' shards that are not there and publishes all of them."""
    folder = settings.open_output()
    described = describe_dataset(settings, vocabulary, store, held_out, [], seal)
    settings_hash = described.settings_hash
    seals = {task.name: task.contents.seal for task in tasks}
    # Shards of other documents are built again.
    built = {name: row for name, row in built.items() if seals.get(name) in (None, row[0].seal)}
    built |= read_records(folder, _not_in(built, tasks), settings_hash)
    missing = _not_in(built, tasks)
    groups = planned_groups(tasks, built)
    write_tokenizer(folder, vocabulary, settings.word_rule)
    plan = dataclasses.replace(described, groups=groups, root_hash=UNKNOWN_HASH)
    folder.write(PLAN, plan.to_json())
    # A record whose shard is gone or cut must not tell a worker that there is nothing to do.
    folder.remove(sorted({record_name(task.name) for task in missing} & folder.list().keys()))
    publisher = PassPublisher(folder, tasks, built, settings_hash)
    num_found = len(tasks) - len(missing)
    outputs = Outputs("shards", len(tasks), num_found, lambda: num_found + publisher.look(), folder)
    tokens = TokenParts(
        settings.open_tokens(), vocabulary.dtype.name, store.has_dropped, held_out.ids
    )
    rules = {seq_len: instance_rule(settings, vocabulary, seq_len) for seq_len in settings.seq_lens}
    run_shards_job(
        ShardBuilder(folder, rules, len(settings.corpus), settings_hash),
        tokens,
        store.part_names,
        missing,
        settings.exchange,
        outputs,
        settings.workers,
        beam_arguments,
    )
    built |= publisher.built
    built |= read_records(folder, _not_in(built, missing), settings_hash)
    built = _without_lost(folder, built, [task.name for task in tasks])
    _refuse_lost(_not_in(built, tasks), len(tasks))
    shards = [shard for shard, _ in built.values()]
    check_random_next(settings, store, shards)
    manifest = describe_dataset(settings, vocabulary, store, held_out, shards, seal)
    publish_dataset(folder, built, manifest)


def _seal_buckets(
    settings: BuildSettings,
    store: TokenStore,
    buckets: Sequence[Bucket],
    held_out: HeldOut,
    folder: Folder,
) -> dict[str, BucketContents]:
    """What each bucket must hold, by its name; also writes documents.ids where it is not there.

    Raises:
        ValueError: The index is not that of the documents which tokens.json counts.
    """
    tokens = settings.open_tokens()
    sums, digest = BucketSums(buckets, held_out.ids), hashlib.blake2b(digest_size=32)

    def walk() -> Iterator[bytes]:
        with open_index(tokens, store.part_names) as index:
            for kept in iterate_kept(index, has_dropped=store.has_dropped):
                sums.add(*kept)
                ids = pack_ids(kept[0], len(settings.corpus))
                digest.update(ids)
                yield ids
        found = digest.hexdigest(), total_seal(sums.contents()).tokens
        if found != (expected := (store.totals.documents_hash, store.totals.tokens)):
            raise ValueError(
                f"{settings.tokens_folder}: the index of its parts tells of documents of hash"
                f" {found[0]} with {found[1]:,} tokens, tokens.json of {expected[0]} with"
                f" {expected[1]:,}: they are of different runs, or damaged; delete that folder and"
                " run again"
            )

    if folder.exists(DOCUMENT_IDS):
        deque(walk(), maxlen=0)
    else:
        write_document_ids(folder, walk())
    return sums.contents()


def _not_in(built: Built, tasks: Sequence[ShardTask]) -> list[ShardTask]:
    return [task for task in tasks if task.name not in built]


def _refuse_lost(lost: Sequence[ShardTask], num_tasks: int) -> None:
    if lost:
        raise ValueError(
            f"the job ended without an error, but {len(lost)} of {num_tasks} shards are not there,"
            f" such as {lost[0].name}: the runner did not deliver bucket {lost[0].bucket.name},"
            f" expected {lost[0].contents}, the store lost or does not list what was written, or"
            " another build works on the same output; run the same command again, and if it happens"
            " again, with --exchange files or on another runner"
        )


def choose_buckets(settings: BuildSettings, totals: Totals, held_out: HeldOut) -> list[Bucket]:
    """The validation bucket and the train buckets of a corpus."""
    by_prefix = np.array(totals.documents_by_prefix, np.int64)
    prefixes = [prefix_of(each, len(by_prefix)) for each in split_ids(held_out.ids)]
    by_prefix -= np.bincount(prefixes, minlength=len(by_prefix)).astype(np.int64)
    documents = [source.documents for source in totals.sources]
    num_bytes = [source.cleaned_bytes for source in totals.sources]
    used_bytes, used = apply_weights(settings.weights, documents, num_bytes)
    number = choose_num_buckets(by_prefix, used_bytes, settings.num_buckets, "num_buckets", used)
    return plan_buckets(number, held_out.ids)


def _claim_folder(folder: Folder, settings: BuildSettings, content: Mapping[str, Any]) -> Built:
    """The shards of a finished dataset of this content; a folder of another one is refused."""
    found: Mapping[str, Any] | None = None
    built: Built = {}
    cure = "give another --output"
    if folder.exists(MANIFEST):
        dataset = open_dataset(settings.output, settings.filesystem_options())
        found, shards = dataset.manifest.settings, dataset.all_shards
        built = {shard.name: (shard, partial(dataset.blocks, shard)) for shard in shards}
    elif folder.exists(SETTINGS):
        begin_again = f"delete {folder.locate(SETTINGS)} and run the same command again"
        found = read_object(folder, SETTINGS, begin_again)
        cure += f"; or, as no dataset is finished there, {begin_again}, which builds shards anew"
    else:
        remove_unfinished(folder)
    if found is not None and (changed := describe_changes(found, content)):
        raise ValueError(f"{settings.output} holds shards of other settings: {changed}; {cure}")
    if not built:
        folder.write(SETTINGS, json_bytes(content))
    return built


def _without_lost(folder: Folder, built: Built, names: Iterable[str]) -> Built:
    """Leaves out those of these shards that are gone or of another size; others stay."""
    files = folder.list() if built else {}
    lost = {name for name in names if name in built and files.get(name) != built[name][0].num_bytes}
    return {name: rows for name, rows in built.items() if name not in lost}


def instance_rule(settings: BuildSettings, vocabulary: Vocabulary, seq_len: int) -> InstanceRule:
    """How instances of one length are made from these settings."""
    masking = masking_rule(vars(settings), seq_len, vocabulary.mask_id, vocabulary.continues)
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
