"""Runs `python -m pipeline vocab`, `tokens` and `shards`, and `build`, which runs all three.

Each stage skips what is already there. If a build was killed, the same command continues it, and
the dataset gets the same root hash.
"""

import contextlib
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.documents.counts import format_counts
from pipeline.documents.source import Source
from pipeline.inspect.dataset_card import write_card
from pipeline.inspect.summary import (
    REPORT_PAGE,
    SOURCES,
    load_report,
    summarize_dataset,
    write_page,
    write_report,
)
from pipeline.inspect.validation import format_validation, measure_validation
from pipeline.jobs.remote_job import wait_for_running_jobs
from pipeline.machine import num_cores
from pipeline.settings import OF_A_SOURCE, BuildSettings, describe_changes
from pipeline.shards.dataset import Dataset
from pipeline.stages.build_shards import instance_rule, make_shards
from pipeline.stages.build_tokens import (
    TokenStore,
    index_delivered,
    make_tokens,
    open_task_texts,
    read_store,
    store_settings,
)
from pipeline.stages.build_vocab import COUNTING, prepare_vocabulary
from pipeline.stages.choose_documents import choice_content
from pipeline.stages.corpus import (
    DELIVERED,
    VOCAB,
    Corpus,
    find_corpus,
)
from pipeline.stages.describe import count_documents
from pipeline.stages.plan import describe_plan
from pipeline.stages.publish import refuse_redacted
from pipeline.stages.soundness import check_tokens
from pipeline.storage.archives import is_archive
from pipeline.storage.json_files import read_present
from pipeline.storage.local import scratch_folder
from pipeline.storage.locks import LOCK, locked_folder
from pipeline.storage.secret_values import hide, hide_in, show
from pipeline.storage.terminal import say
from pipeline.tokens.provenance import OVERLAPS_TABLE, write_overlaps
from tokenizer.compiled import BUILD_COMMAND, load
from tokenizer.vocab import Vocabulary, parse_vocab

_LARGE_SHARE = 0.5  # of the input's bytes, in one document
_NO_VOCABULARY = "run `python -m pipeline tokens` with this --output first, which writes it"
_PROBE = ".beambert-probe"
LOCK_SECONDS = 10.0  # to wait for a lock, which an interrupted build may still hold
# Each compiled module, and how many times as long its work takes without it. The numbers are the
# factors in docs/results.md, which a test compares.
_COMPILED_MODULES = {
    "tokenizer._matcher": "words to ids 51 times, cleaning 20 times",
    "pipeline.wiki._wikitext": "wikitext 2 times",
    "pipeline.instances._instances": "pairs 10 times, masks 60 times",
}


def run_build(
    settings: BuildSettings, beam_arguments: Sequence[str], corpus: Corpus | None = None
) -> None:
    """Runs `python -m pipeline build`, which makes a dataset.

    If `settings.plan` is true, it only prints an estimate of the dataset.

    Args:
        settings: Settings of the build.
        beam_arguments: The user's arguments for Beam.
        corpus: The input; if it is None, it is listed first.

    Raises:
        FileExistsError: Another build writes to the same folder.
        FileNotFoundError: A file that the settings name does not exist.
        ValueError: The settings, the input or a file in the output is at fault.
    """
    seconds: dict[str, float] = {}  # of each stage
    began = time.perf_counter()
    corpus = corpus or find_corpus(settings)
    if settings.plan:
        say(describe_plan(settings, len(corpus.files), corpus.parts, instance_rule))
        return
    _say_what_is_slow()
    open_task_texts(settings)  # so that a bad file is found before a vocabulary is learned
    with _writing(settings, beam_arguments):
        _say_what_is_one_document(corpus)
        vocabulary = prepare_vocabulary(settings, corpus.files, corpus.parts, beam_arguments)
        seconds["vocabulary"] = time.perf_counter() - began
        store = make_tokens(settings, vocabulary, corpus.parts, beam_arguments)
        check_tokens(settings, vocabulary, store)
        seconds["tokens"] = time.perf_counter() - began - sum(seconds.values())
        dataset = make_shards(settings, vocabulary, store, beam_arguments)
        seconds["shards"] = time.perf_counter() - began - sum(seconds.values())
        _write_sources(dataset, settings.corpus, corpus)
        _write_overlaps(settings, store)
        _write_report(dataset, settings, seconds, corpus.readings)
    _print_counts(settings, store)
    _print_result(dataset, time.perf_counter() - began)


def run_vocab(
    settings: BuildSettings, beam_arguments: Sequence[str], corpus: Corpus | None = None
) -> None:
    """Runs `python -m pipeline vocab`: makes the vocabulary. Arguments are those of `run_build`."""
    corpus = corpus or find_corpus(settings)
    with _writing(settings, beam_arguments):
        vocabulary = prepare_vocabulary(settings, corpus.files, corpus.parts, beam_arguments)
    say(f"{len(vocabulary)} entries in {settings.output}/{VOCAB}")


def run_tokens(
    settings: BuildSettings, beam_arguments: Sequence[str], corpus: Corpus | None = None
) -> None:
    """Runs `python -m pipeline tokens`: makes the vocabulary and encodes the input.

    Arguments are those of `run_build`.
    """
    corpus = corpus or find_corpus(settings)
    open_task_texts(settings)
    with _writing(settings, beam_arguments):
        vocabulary = prepare_vocabulary(settings, corpus.files, corpus.parts, beam_arguments)
        store = make_tokens(settings, vocabulary, corpus.parts, beam_arguments)
        _write_overlaps(settings, store)
    _print_counts(settings, store)
    totals = store.totals
    folder = settings.tokens_folder
    say(f"{totals.documents} distinct documents, {totals.tokens} tokens in {folder}")


def run_shards(settings: BuildSettings, beam_arguments: Sequence[str]) -> Dataset:
    """Runs `python -m pipeline shards`: makes a dataset of encoded documents; returns it opened.

    The documents are those of `python -m pipeline tokens` or of `WriteTokens`. The input is not
    read.

    Args:
        settings: Settings of the build.
        beam_arguments: The user's arguments for Beam.

    Raises:
        FileNotFoundError: There are no encoded documents, or their vocabulary is missing.
        ValueError: The documents were encoded with other settings, or are damaged.
    """
    began = time.perf_counter()
    folder = settings.open_tokens()
    is_delivered = folder.exists(DELIVERED)
    if not is_delivered:
        read_store(folder)  # raises an error if there is none, before anything is written
    where = f"{settings.output}/{VOCAB}"
    vocabulary = parse_vocab(read_present(settings.open_output(), VOCAB, _NO_VOCABULARY), where)
    with _writing(settings, beam_arguments, only_reads_tokens=not is_delivered):
        if is_delivered:
            store = index_delivered(settings, vocabulary, beam_arguments)
        else:
            store = read_store(folder)
        _refuse_other_tokens(settings, vocabulary, store)
        check_tokens(settings, vocabulary, store)
        dataset = make_shards(settings, vocabulary, store, beam_arguments)
    _print_counts(settings, store)
    _print_result(dataset, time.perf_counter() - began)
    return dataset


def _refuse_other_tokens(
    settings: BuildSettings, vocabulary: Vocabulary, store: TokenStore
) -> None:
    """Checks that documents were encoded with the vocabulary and the settings of this build.

    Raises:
        ValueError: The documents were encoded with another vocabulary or other settings.
    """
    if vocabulary.sha256 != store.settings["vocab_sha256"]:
        raise ValueError(
            f"{settings.output}/{VOCAB} is not the vocabulary that {settings.tokens_folder} was"
            " encoded with"
        )
    content = store_settings(settings, vocabulary.sha256) | choice_content(settings)
    changed = describe_changes({**store.settings, **store.choice}, content)
    if changed:
        raise ValueError(
            f"{settings.tokens_folder} holds tokens of other settings: {changed};"
            " give the same ones"
        )


@contextlib.contextmanager
def _writing(
    settings: BuildSettings, beam_arguments: Sequence[str], *, only_reads_tokens: bool = False
) -> Iterator[None]:
    """Locks the output and the folder of encoded documents during the body of the `with` statement.

    No other build can then write to the same local folders. Object stores have no locks. If two
    builds write to the same folder of a store, one of them finds other files than its counts and
    seals say, and ends with an error.

    If the user wants to wait for a job of an earlier launcher, that is done before the body.

    During the body, temporary files of this process and its workers are in a folder of their own
    (`scratch_folder`).

    Args:
        settings: Settings of the build, which name both folders.
        beam_arguments: The user's arguments for Beam.
        only_reads_tokens: Whether the folder of encoded documents is only read, which several
            builds may do at once.

    Raises:
        FileExistsError: Another build writes to one of the folders.
        ValueError: The output cannot be written to, or holds a redacted dataset, which is found
            before any work is done. Or the file that names a running job is damaged.
    """
    output = settings.open_output()
    tokens = settings.open_tokens()
    refuse_redacted(output)
    try:
        output.write(_PROBE, b"")
        output.remove([_PROBE])
    except OSError as error:
        raise ValueError(
            f"--output {settings.output}: nothing can be written there: {error.strerror or error};"
            " give a folder that you may write into"
        ) from error
    with contextlib.ExitStack() as stack:
        if output.is_local:
            stack.enter_context(locked_folder(output.local_path(), LOCK, LOCK_SECONDS))
        if settings.tokens and tokens.is_local and tokens.path != output.path:
            lock = locked_folder(
                tokens.local_path(), LOCK, LOCK_SECONDS, is_shared=only_reads_tokens
            )
            stack.enter_context(lock)
        stack.enter_context(scratch_folder(output.locate()))
        wait_for_running_jobs([output / COUNTING, tokens, output], beam_arguments)
        yield


def _say_what_is_one_document(corpus: Corpus) -> None:
    """Warns the user if one text file is read as one document and is more than half of the input.

    Such a file probably has many documents, and the user should say how they are divided.

    Raises:
        ValueError: The file is the whole input.
    """
    all_ranges = [file_range for part in corpus.parts for file_range in part.ranges]
    ranges = [file_range for file_range in all_ranges if file_range.size]
    largest = max(ranges, key=lambda file_range: file_range.num_bytes)
    if largest.format != "text" or is_archive(largest.url):
        return
    cure = (
        "give --format text-blank-lines where blank lines stand between documents, or --format"
        " lines where each line is one"
    )
    if len(ranges) == 1:
        raise ValueError(f"{largest.url}: is one document, and a dataset needs two; {cure}")
    share = largest.num_bytes / sum(file_range.num_bytes for file_range in ranges)
    if share > _LARGE_SHARE:
        say(f"{show(largest.url)}: is one document, {share:.0%} of the input; {cure}")


def _say_what_is_slow() -> None:
    """Names the work that takes longer because a compiled module is missing, if one is."""
    slow = [factor for name, factor in _COMPILED_MODULES.items() if not load(name)]
    if slow:
        say(
            f"without a compiled module these take longer: {', '.join(slow)}; the result is the"
            f" same; where there is a C compiler, this builds the modules: {BUILD_COMMAND}"
        )


def _write_sources(dataset: Dataset, sources: Sequence[Source], corpus: Corpus) -> None:
    """Writes sources.parquet, a table of the input files: url, bytes, source and licence.

    It is for people and enters no hash, as the same files may be moved elsewhere.
    """
    columns = {
        "url": [hide(file.url) for file in corpus.files],
        "bytes": [file.size for file in corpus.files],
        "source": [sources[file.source].name for file in corpus.files],
        "licence": [sources[file.source].licence for file in corpus.files],
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    dataset.folder.write(SOURCES, bytes(sink.getvalue()))


def _write_overlaps(settings: BuildSettings, store: TokenStore) -> None:
    """Writes task_overlaps.parquet if the settings name task files. It enters no hash."""
    if settings.task_files:
        output = settings.open_output()
        num_overlaps = store.num_overlaps
        write_overlaps(settings.open_tokens(), store.part_names, output, num_overlaps)
        where = output.locate(OVERLAPS_TABLE)
        say(f"task files: {num_overlaps:,} documents are listed in {where}")


def _write_report(
    dataset: Dataset, settings: BuildSettings, seconds: dict[str, float], readings: Sequence[str]
) -> None:
    """Writes the files about a dataset that are for people: the report, its page and the card.

    If there is a report already, its facts about the build are kept, such as the times, since this
    launch may have found everything finished.

    Args:
        dataset: The finished dataset.
        settings: Settings of the build.
        seconds: Wall-clock time of each stage.
        readings: Lines about how the files of each source were read.
    """
    machine = {
        "host": platform.node(),
        "cores": num_cores(),
        "python": sys.version.split()[0],
        "compiled": ", ".join(filter(load, _COMPILED_MODULES)) or "nothing",
    }
    build: dict[str, Any] = {
        "seconds": {stage: round(value, 2) for stage, value in seconds.items()},
        "machine": machine,
        "readings": list(readings),
        "date": datetime.now(UTC).date().isoformat(),
    }
    # Options may hold secrets, and the report has a table of sources.
    left_out = {"storage_options", "sources"}
    if settings.sources:
        left_out |= {"input", *OF_A_SOURCE}
    shown = {key: value for key, value in asdict(settings).items() if key not in left_out}
    build = load_report(dataset).get("build", build | {"settings": shown})
    numbers = summarize_dataset(dataset, settings.tokens_folder, settings.filesystem_options())
    report: dict[str, Any] = json.loads(json.dumps(hide_in({"dataset": numbers, "build": build})))
    write_report(dataset, report)
    write_page(report, dataset.folder, REPORT_PAGE)
    write_card(dataset, report)


def _print_counts(settings: BuildSettings, store: TokenStore) -> None:
    """Prints how many documents of each source were kept, and dropped for which reason."""
    for line in format_counts(count_documents(settings, store), store.without_text):
        say(line)


def _print_result(dataset: Dataset, seconds: float) -> None:
    """Prints the size of a finished dataset, its root hash, and the seconds that it took."""
    manifest = dataset.manifest
    for group in manifest.groups:
        say(
            f"{group.split} L{group.seq_len}: {group.instances:,} instances of"
            f" {group.tokens:,} tokens in {group.shards} shard(s), {group.passes} pass(es)"
        )
    for line in format_validation(measure_validation(manifest.sources, manifest.settings)):
        say(line)
    say(f"root hash {manifest.root_hash}\n{dataset.url} is complete ({seconds:.1f} s)")
