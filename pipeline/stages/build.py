"""`python -m pipeline vocab`, `tokens`, `shards`, and `build`, which runs the three in order.

Each stage skips what is already there: a build that was killed ends, run again, with the same root
hash.
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
from pipeline.stages.build_vocab import prepare_vocabulary
from pipeline.stages.choose_documents import choice_content
from pipeline.stages.corpus import (
    DELIVERED,
    VOCAB,
    Corpus,
    find_corpus,
)
from pipeline.stages.describe import count_documents
from pipeline.stages.plan import describe_plan
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

_LARGE_SHARE = 0.5
_NO_VOCABULARY = "run `python -m pipeline tokens` with this --output first, which writes it"
_PROBE = ".beambert-probe"
LOCK_SECONDS = 10.0  # a build that was told to end may still be leaving
# Each compiled module, and how many times as long its work takes without it (docs/results.md).
_COMPILED_MODULES = {
    "tokenizer._matcher": "words to ids 50 times, cleaning 20 times",
    "pipeline.wiki._wikitext": "wikitext 2 times",
    "pipeline.instances._instances": "pairs 10 times, masks 60 times",
}


def run_build(
    settings: BuildSettings, beam_arguments: Sequence[str], corpus: Corpus | None = None
) -> None:
    """Runs `python -m pipeline build`; lists the input files first if `corpus` is None."""
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    corpus = corpus or find_corpus(settings)
    if settings.plan:
        say(describe_plan(settings, len(corpus.files), corpus.parts, instance_rule))
        return
    _say_what_is_slow()
    open_task_texts(settings)  # a broken file is told before a vocabulary is learned for hours
    with _writing(settings):
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
    """Runs `python -m pipeline vocab`; lists the input files first if `corpus` is None."""
    corpus = corpus or find_corpus(settings)
    with _writing(settings):
        vocabulary = prepare_vocabulary(settings, corpus.files, corpus.parts, beam_arguments)
    say(f"{len(vocabulary)} entries in {settings.output}/{VOCAB}")


def run_tokens(
    settings: BuildSettings, beam_arguments: Sequence[str], corpus: Corpus | None = None
) -> None:
    """Runs `python -m pipeline tokens`; lists the input files first if `corpus` is None."""
    corpus = corpus or find_corpus(settings)
    open_task_texts(settings)
    with _writing(settings):
        vocabulary = prepare_vocabulary(settings, corpus.files, corpus.parts, beam_arguments)
        store = make_tokens(settings, vocabulary, corpus.parts, beam_arguments)
        _write_overlaps(settings, store)
    _print_counts(settings, store)
    totals, folder = store.totals, settings.tokens_folder
    say(f"{totals.documents} distinct documents, {totals.tokens} tokens in {folder}")


def run_shards(settings: BuildSettings, beam_arguments: Sequence[str]) -> Dataset:
    """`python -m pipeline shards`: from finished tokens; the input is not looked at."""
    began = time.perf_counter()
    folder = settings.open_tokens()
    is_delivered = folder.exists(DELIVERED)
    if not is_delivered:
        read_store(folder)  # else it is not there, which is said before anything is written
    where = f"{settings.output}/{VOCAB}"
    vocabulary = parse_vocab(read_present(settings.open_output(), VOCAB, _NO_VOCABULARY), where)
    with _writing(settings, only_reads_tokens=not is_delivered):
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
    """Compares the encoded documents with the vocabulary and the settings of this build.

    Raises:
        ValueError: The documents were encoded with another vocabulary or other settings.
    """
    if vocabulary.sha256 != store.settings["vocab_sha256"]:
        raise ValueError(
            f"{settings.output}/{VOCAB} is not the vocabulary that {settings.tokens_folder} was"
            " encoded with"
        )
    wanted = store_settings(settings, vocabulary.sha256) | choice_content(settings)
    if changed := describe_changes({**store.settings, **store.choice}, wanted):
        raise ValueError(
            f"{settings.tokens_folder} holds tokens of other settings: {changed};"
            " give the same ones"
        )


@contextlib.contextmanager
def _writing(settings: BuildSettings, *, only_reads_tokens: bool = False) -> Iterator[None]:
    """Locks the output while this build writes, and keeps temporary files in their own folder.

    No other build can then write into the same local folders. Stores have no locks. If two builds
    write to one store, their counts and seals differ, and one of them ends with an error.

    Args:
        settings: Name the output and the folder of encoded documents.
        only_reads_tokens: Whether the folder of encoded documents is only read, which several
            builds may do at once.

    Raises:
        FileExistsError: Another build writes there.
        ValueError: The output cannot be written to, which is found before any work is done.
    """
    output, tokens = settings.open_output(), settings.open_tokens()
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
        yield


def _say_what_is_one_document(corpus: Corpus) -> None:
    """Warns of a file of text that holds most of a corpus as one document.

    Raises:
        ValueError: It is the only document.
    """
    ranges = [each for part in corpus.parts for each in part.ranges if each.size]
    largest = max(ranges, key=lambda each: each.num_bytes)
    if largest.format != "text" or is_archive(largest.url):
        return
    cure = (
        "give --format text-blank-lines where blank lines stand between documents, or --format"
        " lines where each line is one"
    )
    if len(ranges) == 1:
        raise ValueError(f"{largest.url}: is one document, and no pairs come of one; {cure}")
    share = largest.num_bytes / sum(each.num_bytes for each in ranges)
    if share > _LARGE_SHARE:
        say(f"{show(largest.url)}: is one document, {share:.0%} of the input; {cure}")


def _say_what_is_slow() -> None:
    slow = [factor for name, factor in _COMPILED_MODULES.items() if not load(name)]
    if slow:
        say(
            f"without a compiled module these take longer: {', '.join(slow)}; the result is the"
            f" same; where there is a C compiler, this builds the modules: {BUILD_COMMAND}"
        )


def _write_sources(dataset: Dataset, sources: Sequence[Source], corpus: Corpus) -> None:
    """sources.parquet: the input files, which may have been moved since and change no hash."""
    rows = [
        (hide(file.url), file.size, sources[file.source].name, sources[file.source].licence)
        for file in corpus.files
    ]
    names = ("url", "bytes", "source", "licence")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(zip(names, zip(*rows, strict=True), strict=True))), sink)
    dataset.folder.write(SOURCES, bytes(sink.getvalue()))


def _write_overlaps(settings: BuildSettings, store: TokenStore) -> None:
    """task_overlaps.parquet, where the build has task files; it changes no hash."""
    if settings.task_files:
        output = settings.open_output()
        number = store.num_overlaps
        write_overlaps(settings.open_tokens(), store.part_names, output, number)
        where = output.locate(OVERLAPS_TABLE)
        say(f"task files: {number:,} documents are listed in {where}")


def _write_report(
    dataset: Dataset, settings: BuildSettings, seconds: dict[str, float], readings: Sequence[str]
) -> None:
    """What speaks of the dataset; a run that found all finished leaves the times of another."""
    machine = {
        "host": platform.node(),
        "cores": num_cores(),
        "python": sys.version.split()[0],
        "compiled": ", ".join(filter(load, _COMPILED_MODULES)) or "nothing",
    }
    run: dict[str, Any] = {
        "seconds": {stage: round(value, 2) for stage, value in seconds.items()},
        "machine": machine,
        "readings": list(readings),
        "date": datetime.now(UTC).date().isoformat(),
    }
    left_out = {"storage_options", "sources"}  # may hold secrets; have a table of their own
    left_out |= {"input", *OF_A_SOURCE} if settings.sources else set()
    shown = {key: value for key, value in asdict(settings).items() if key not in left_out}
    run = load_report(dataset).get("build", run | {"settings": shown})
    numbers = summarize_dataset(dataset, settings.tokens_folder, settings.filesystem_options())
    report: dict[str, Any] = json.loads(json.dumps(hide_in({"dataset": numbers, "build": run})))
    write_report(dataset, report)
    write_page(report, dataset.folder, REPORT_PAGE)
    write_card(dataset, report)


def _print_counts(settings: BuildSettings, store: TokenStore) -> None:
    for line in format_counts(count_documents(settings, store), store.without_text):
        say(line)


def _print_result(dataset: Dataset, seconds: float) -> None:
    manifest = dataset.manifest
    for each in manifest.groups:
        say(
            f"{each.split} L{each.seq_len}: {each.instances:,} instances of {each.tokens:,} tokens"
            f" in {each.shards} shard(s), {each.passes} pass(es)"
        )
    for line in format_validation(measure_validation(manifest.sources, manifest.settings)):
        say(line)
    say(f"root hash {manifest.root_hash}\n{dataset.url} is complete ({seconds:.1f} s)")
