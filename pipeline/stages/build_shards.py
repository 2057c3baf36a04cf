"""The shards stage builds the shards that are not there yet, and publishes what is finished.

manifest.json is written after everything that it describes. Lengths and passes may be added to a
finished dataset.
"""

import dataclasses
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from pipeline.shards.records import Manifest, Shard, json_bytes
from pipeline.shards.seal import Seal
from pipeline.stages.block_spool import BlockSpool, open_block_spool
from pipeline.stages.build_tokens import TokenStore
from pipeline.stages.build_vocab import write_tokenizer
from pipeline.stages.describe import describe_dataset
from pipeline.stages.publish import (
    SETTINGS,
    Built,
    PassPublisher,
    list_places,
    places_of,
    planned_groups,
    publish_dataset,
    read_records,
    remove_leftovers,
    remove_unfinished,
    seals_of,
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


@dataclass(frozen=True)
class ShardInputs:
    """Everything that the shards of a dataset are made of.

    Attributes:
        settings: Settings of the build.
        vocabulary: The vocabulary that the documents were encoded with.
        store: The encoded documents.
        held_out: The documents that are held out for validation.
    """

    settings: BuildSettings
    vocabulary: Vocabulary
    store: TokenStore
    held_out: HeldOut

    def describe(self, shards: Sequence[Shard], seal: Seal) -> Manifest:
        """Returns the manifest of a dataset with these shards, without the hashes of its tables.

        Args:
            shards: All shards; none for the manifest of a build that begins.
            seal: Seal of all documents of the dataset.
        """
        return describe_dataset(
            self.settings, self.vocabulary, self.store, self.held_out, shards, seal
        )


def make_shards(
    settings: BuildSettings,
    vocabulary: Vocabulary,
    store: TokenStore,
    beam_arguments: Sequence[str],
) -> Dataset:
    """Builds every shard that is missing, publishes the dataset and opens it.

    Args:
        settings: Settings of the build.
        vocabulary: The vocabulary that the documents were encoded with.
        store: The encoded documents.
        beam_arguments: The user's arguments for Beam.

    Raises:
        ValueError: The folder holds a dataset of other settings or documents, there are too few
            documents, or a runner or store did not deliver every document of every bucket once.
    """
    folder = settings.open_output()
    content = settings.content(vocabulary.sha256, store.totals.documents_hash, store.deciding)
    held_out = choose_held_out(
        store.totals.sources, settings.validation_fraction, settings.validation_tokens
    )
    inputs = ShardInputs(settings, vocabulary, store, held_out)
    buckets = choose_buckets(settings, store.totals, held_out)
    names = plan_names(buckets, settings.seq_lens, settings.passes)
    of_finished = _claim_folder(folder, settings, content)
    built = _without_lost(folder, of_finished, names)
    is_complete = built.keys() >= set(names)
    if folder.exists(MANIFEST) and is_complete:
        if not folder.exists(DOCUMENT_IDS):
            _seal_buckets(inputs, buckets, folder)
        remove_leftovers(folder)  # a launch may have been killed after it wrote the manifest
        return open_dataset(settings.output, settings.filesystem_options())

    contents = _seal_buckets(inputs, buckets, folder)
    tasks = plan_tasks(buckets, settings.seq_lens, settings.passes, contents)
    with open_block_spool() as spool:
        _build_missing(inputs, tasks, total_seal(contents), built, spool, beam_arguments)
    return open_dataset(settings.output, settings.filesystem_options())


def _build_missing(
    inputs: ShardInputs,
    tasks: Sequence[ShardTask],
    seal: Seal,
    built: Built,
    spool: BlockSpool,
    beam_arguments: Sequence[str],
) -> None:
    """Builds the shards that are missing, and then publishes the whole dataset.

    Args:
        inputs: What the shards are made of.
        tasks: All shards of the dataset.
        seal: Seal of all documents.
        built: The shards of a finished dataset in the same folder, to which lengths or passes are
            added; empty if there is none.
        spool: Receives the block tables of all other shards.
        beam_arguments: The user's arguments for Beam.

    Raises:
        ValueError: Shards are missing after the job, or too many pairs are random.
    """
    folder = inputs.settings.open_output()
    manifest = inputs.describe([], seal)
    settings_hash = manifest.settings_hash
    built = _find_finished(folder, tasks, built, settings_hash, spool)
    missing = _not_in(built, tasks)
    write_tokenizer(folder, inputs.vocabulary, inputs.settings.word_rule)
    groups = planned_groups(tasks, built)
    plan = dataclasses.replace(manifest, groups=groups, root_hash=UNKNOWN_HASH)
    folder.write(PLAN, plan.to_json())
    # A worker would take a shard that is lost or cut short as finished if its record stayed.
    records_of_missing = {record_name(task.name) for task in missing}
    records_there = list_places(folder, places_of(records_of_missing)).keys()
    folder.remove(sorted(records_of_missing & records_there))

    publisher = PassPublisher(folder, tasks, built, settings_hash, spool)
    _run_job(inputs, missing, len(tasks), settings_hash, publisher, beam_arguments)

    built = built | publisher.built
    # The publisher reads the records of whole passes, and has last looked before the job ended.
    not_seen = _not_in(built, missing)
    built |= read_records(folder, seals_of(not_seen), settings_hash, spool)
    built = _without_lost(folder, built, [task.name for task in tasks])
    _refuse_lost(_not_in(built, tasks), len(tasks))
    shards = [shard for shard, _ in built.values()]
    check_random_next(inputs.settings, inputs.store, shards)
    publish_dataset(folder, built, inputs.describe(shards, seal))


def _find_finished(
    folder: Folder,
    tasks: Sequence[ShardTask],
    built: Built,
    settings_hash: str,
    spool: BlockSpool,
) -> Built:
    """Returns the shards that need not be built.

    A shard of a finished dataset is kept, unless its bucket must hold other documents now. A shard
    of an interrupted build is kept if its record is valid (`read_records`).

    Args:
        folder: The folder of the dataset.
        tasks: All shards of the dataset.
        built: The shards of a finished dataset; empty if there is none.
        settings_hash: Hash of the dataset's settings.
        spool: Receives the block tables of the shards whose records are read.
    """
    expected_seals = seals_of(tasks)
    finished: Built = {}
    for name, row in built.items():
        shard, _ = row
        is_planned = name in expected_seals  # if not, it is of a length or pass not asked for now
        if not is_planned or shard.seal == expected_seals[name]:
            finished[name] = row
    missing = seals_of(_not_in(finished, tasks))
    return finished | read_records(folder, missing, settings_hash, spool)


def _run_job(
    inputs: ShardInputs,
    missing: Sequence[ShardTask],
    num_tasks: int,
    settings_hash: str,
    publisher: PassPublisher,
    beam_arguments: Sequence[str],
) -> None:
    """Runs the Beam job that builds the missing shards.

    Each pass is published as soon as all its shards are complete, while the job goes on.

    Args:
        inputs: What the shards are made of.
        missing: The shards to build.
        num_tasks: Number of all shards of the dataset.
        settings_hash: Hash of the dataset's settings.
        publisher: Publishes passes as they are complete.
        beam_arguments: The user's arguments for Beam.
    """
    settings = inputs.settings
    vocabulary = inputs.vocabulary
    store = inputs.store
    folder = settings.open_output()
    num_found = num_tasks - len(missing)
    outputs = Outputs(
        noun="shards",
        total=num_tasks,
        num_found=num_found,
        count=lambda: num_found + publisher.look(),  # counting also publishes complete passes
        folder=folder,
    )
    tokens = TokenParts(
        settings.open_tokens(), vocabulary.dtype.name, store.has_dropped, inputs.held_out.ids
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


def _seal_buckets(
    inputs: ShardInputs, buckets: Sequence[Bucket], folder: Folder
) -> dict[str, BucketContents]:
    """Computes what each bucket must hold, and writes documents.ids unless it is there.

    Both are made from the index of the token parts, which is read once.

    Args:
        inputs: What the shards are made of.
        buckets: All buckets, of both splits.
        folder: The folder of the dataset.

    Returns:
        The contents of each bucket, by the bucket's name.

    Raises:
        ValueError: The index has other documents than tokens.json says.
    """
    settings = inputs.settings
    store = inputs.store
    sums = BucketSums(buckets, inputs.held_out.ids)

    def walk_ids() -> Iterator[bytes]:
        digest = hashlib.blake2b(digest_size=32)
        with open_index(settings.open_tokens(), store.part_names) as index:
            groups = iterate_kept(index, has_dropped=store.has_dropped)
            for documents, num_rows, checksums in groups:
                sums.add(documents, num_rows, checksums)
                ids = pack_ids(documents, len(settings.corpus))
                digest.update(ids)
                yield ids
        _refuse_other_index(inputs, digest.hexdigest(), total_seal(sums.contents()).tokens)

    if folder.exists(DOCUMENT_IDS):
        deque(walk_ids(), maxlen=0)  # takes all ids and keeps none, for the sums alone
    else:
        write_document_ids(folder, walk_ids())
    return sums.contents()


def _refuse_other_index(inputs: ShardInputs, documents_hash: str, num_tokens: int) -> None:
    """Checks that the index of the token parts has the documents that tokens.json says.

    Args:
        inputs: What the shards are made of; its store is the content of tokens.json.
        documents_hash: Hash of the ids of the documents of the index.
        num_tokens: The number of their tokens.

    Raises:
        ValueError: The hash or the number differs from that in tokens.json.
    """
    totals = inputs.store.totals
    if (documents_hash, num_tokens) != (totals.documents_hash, totals.tokens):
        raise ValueError(
            f"{inputs.settings.tokens_folder}: the index of its parts tells of documents of hash"
            f" {documents_hash} with {num_tokens:,} tokens, tokens.json of"
            f" {totals.documents_hash} with {totals.tokens:,}: they are of different builds, or"
            " damaged; delete that folder and run again"
        )


def _not_in(built: Built, tasks: Sequence[ShardTask]) -> list[ShardTask]:
    """Returns the tasks whose shards are not among those that are built."""
    return [task for task in tasks if task.name not in built]


def _refuse_lost(lost: Sequence[ShardTask], num_tasks: int) -> None:
    """Raises ValueError if shards are missing after the job; `num_tasks` is the number of all."""
    if lost:
        raise ValueError(
            f"the job ended without an error, but {len(lost)} of {num_tasks} shards are not there,"
            f" such as {lost[0].name}: the runner did not deliver bucket {lost[0].bucket.name},"
            f" expected {lost[0].contents}, the store lost or does not list what was written, or"
            " another build works on the same output; run the same command again, and if it happens"
            " again, with --exchange files or on another runner"
        )


def choose_buckets(settings: BuildSettings, totals: Totals, held_out: HeldOut) -> list[Bucket]:
    """Divides the documents of a corpus into buckets.

    Returns first the bucket of validation, if documents are held out, and then those of train.

    Args:
        settings: Settings of the build. They may state the number of train buckets. Otherwise it
            follows from the size of the text and the weights of the sources.
        totals: Counts of the distinct documents.
        held_out: The validation documents.

    Raises:
        ValueError: There are too few documents for the number that the settings name.
    """
    num_prefixes = len(totals.documents_by_prefix)
    all_by_prefix = np.array(totals.documents_by_prefix, np.int64)
    prefixes = [prefix_of(document_id, num_prefixes) for document_id in split_ids(held_out.ids)]
    held_out_by_prefix = np.bincount(prefixes, minlength=num_prefixes).astype(np.int64)
    documents = [source.documents for source in totals.sources]
    num_bytes = [source.cleaned_bytes for source in totals.sources]
    used_bytes, num_used = apply_weights(settings.weights, documents, num_bytes)
    num_buckets = choose_num_buckets(
        all_by_prefix - held_out_by_prefix,
        used_bytes,
        settings.num_buckets,
        "num_buckets",
        num_used,
    )
    return plan_buckets(num_buckets, held_out.ids)


def _claim_folder(folder: Folder, settings: BuildSettings, content: Mapping[str, Any]) -> Built:
    """Checks that a folder has no shards of other settings, and claims it for a dataset.

    If the folder has no finished dataset, `content` is written to settings.json under _tasks/, so
    that a later build with other settings refuses the folder. Shards of an unfinished build that
    has no such file are removed.

    Args:
        folder: The folder of the dataset.
        settings: Settings of the build.
        content: The settings and documents that decide the instances.

    Returns:
        The shards of the finished dataset in the folder; empty if there is none.

    Raises:
        ValueError: The folder holds shards of other settings or documents.
    """
    before: Mapping[str, Any] | None = None
    built: Built = {}
    cure = "give another --output"
    if folder.exists(MANIFEST):
        dataset = open_dataset(settings.output, settings.filesystem_options())
        before = dataset.manifest.settings
        for shard in dataset.all_shards:
            built[shard.name] = (shard, partial(dataset.blocks, shard))
    elif folder.exists(SETTINGS):
        begin_again = f"delete {folder.locate(SETTINGS)} and run the same command again"
        before = read_object(folder, SETTINGS, begin_again)
        cure += f"; or, as no dataset is finished there, {begin_again}, which builds shards anew"
    else:
        remove_unfinished(folder)

    if before is not None:
        changed = describe_changes(before, content)
        if changed:
            raise ValueError(f"{settings.output} holds shards of other settings: {changed}; {cure}")
    if not built:
        folder.write(SETTINGS, json_bytes(content))
    return built


def _without_lost(folder: Folder, built: Built, names: Iterable[str]) -> Built:
    """Returns the shards without those whose file is gone or has another size.

    Args:
        folder: The folder of the dataset.
        built: The shards.
        names: The shards to look at. Others stay, whatever is in the folder.
    """
    looked_at = [name for name in names if name in built]
    files = list_places(folder, places_of(looked_at))
    lost = {name for name in looked_at if files.get(name) != built[name][0].num_bytes}
    return {name: row for name, row in built.items() if name not in lost}


def instance_rule(settings: BuildSettings, vocabulary: Vocabulary, seq_len: int) -> InstanceRule:
    """Returns how instances of one length are made under these settings."""
    masking = masking_rule(vars(settings), seq_len, vocabulary.mask_id, vocabulary.continues)
    return InstanceRule(
        seq_len=seq_len,
        seed=settings.seed,
        short_seq_prob=settings.short_seq_prob,
        cls_id=vocabulary.cls_id,
        sep_id=vocabulary.sep_id,
        masking=masking,
        kind=settings.instances,
        nsp_balance=settings.nsp_balance,
        weights=settings.weights,
    )
