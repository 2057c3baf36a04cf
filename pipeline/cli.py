"""`python -m pipeline`: the commands of the builder. Heavy imports wait for the command that needs them."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pipeline.command_line.program import Command, check_least, run_program
from pipeline.interrupts import INTERRUPTED, Interrupted

if TYPE_CHECKING:
    from pipeline.settings import BuildSettings
    from pipeline.shards.dataset import Dataset

_BUILD = "pipeline.settings:BuildSettings"
_CHECKED_AT_ONCE = 4
"""Shards that verify holds in memory, where as much is free."""

_NO_PLACES = "where documents come from is not known: the encoded documents (tokens/), which say it, are gone"
_OF_INSTANCES = (
    "seq_lens", "passes", "seed", "short_seq_prob", "masked_lm_prob", "max_predictions", "whole_word_masking",
    "nsp_balance", "num_buckets", "validation_fraction", "exchange",
)  # fmt: skip
_OF_BUILD = ("plan",)
_NOT_OF_VOCAB = (
    "language", "near_duplicates", "exclude_documents_of", "task_files", "task_overlap",
    "validation_tokens", "tokens",
)  # fmt: skip
_NOT_OF_SHARDS = (
    "input", "on_bad_document", "vocab", "extend", "vocab_size", "num_unused", "alphabet_size", "part_bytes",
)  # fmt: skip
_ALL_STAGES = "Flags of the other stages are taken too, and not looked at."
COMMANDS = {
    "build": Command(
        summary="make a dataset from raw text: vocab, tokens and shards in turn",
        settings=_BUILD, function="pipeline.cli:build", takes_remainder=True,
    ),
    "vocab": Command(
        summary="learn a vocabulary from text, or take one: vocab.txt and tokenizer.json",
        settings=_BUILD, function="pipeline.cli:vocab", takes_remainder=True,
        unused=(*_OF_BUILD, *_OF_INSTANCES, *_NOT_OF_VOCAB),
        description=f"Learns a vocabulary from text, or takes one: vocab.txt and tokenizer.json. {_ALL_STAGES}",
    ),
    "tokens": Command(
        summary="encode the documents of text with a vocabulary",
        settings=_BUILD, function="pipeline.cli:tokens", takes_remainder=True,
        unused=(*_OF_BUILD, *_OF_INSTANCES),
        description=f"Encodes the documents of text, with the vocabulary that is there or is made. {_ALL_STAGES}",
    ),
    "shards": Command(
        summary="make a dataset of encoded documents",
        settings=_BUILD, function="pipeline.cli:shards", takes_remainder=True,
        unused=(*_OF_BUILD, *_NOT_OF_SHARDS),
        description=f"Makes a dataset of documents that tokens encoded with the same settings. {_ALL_STAGES}",
    ),
    "verify": Command(
        summary="read a dataset once and say what is wrong",
        settings="pipeline.cli:VerifySettings", function="pipeline.cli:verify", positionals=("data",),
    ),
    "inspect": Command(
        summary="show instances in readable form",
        settings="pipeline.cli:InspectSettings", function="pipeline.cli:inspect", positionals=("data",),
    ),
    "report": Command(
        summary="show what a dataset holds",
        settings="pipeline.cli:ReportSettings", function="pipeline.cli:report", positionals=("data",),
    ),
    "export": Command(
        summary="write a dataset's instances in the files that other trainers read",
        settings="pipeline.cli:ExportSettings", function="pipeline.cli:export", positionals=("data",),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """A dataset to look at.

    Attributes:
        data: Folder or URL of the dataset.
        storage_options: Options of the filesystems, as JSON or @FILE. The usual environment
            variables count too.
    """

    data: str
    storage_options: str | None = None


@dataclass(frozen=True, kw_only=True)
class VerifySettings(DatasetSettings):
    """Reads a whole dataset once and says everything that is wrong with it.

    Attributes:
        deep: Whether every instance is also held to BERT's rules (docs/parity.md), and the shares
            that chance decides are tested.
    """

    deep: bool = False


@dataclass(frozen=True, kw_only=True)
class InspectSettings(DatasetSettings):
    """Shows instances in readable form, masked words as [shown>original], or documents.

    Attributes:
        num_instances: How many instances are shown, from the first on.
        split: The split that the instances are from.
        seq_len: Sequence length of the instances; null means the shortest there is.
        documents: Documents to show in place of instances, by the beginnings of their ids, such as
            the 16 hex digits beside an instance: where each comes from and how often it is used.
        dropped: Whether to show some dropped documents of each reason in place of instances. Copies
            of others are only counted.
    """

    num_instances: int = 2
    split: Literal["train", "validation"] = "train"
    seq_len: int | None = None
    dropped: bool = False
    documents: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_least(self, num_instances=1)


@dataclass(frozen=True, kw_only=True)
class ReportSettings(DatasetSettings):
    """Prints what a dataset holds, and writes a page: documents, drops, lengths, masks, instances.

    Attributes:
        output: File or URL of the page; null means report.html in the dataset.
    """

    output: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExportSettings(DatasetSettings):
    """Writes the instances of one split and length in files that other trainers read: one a shard.

    Attributes:
        format: Format of the files: tfrecord is what run_pretraining.py of google-research/bert
            reads; parquet has a row for each instance, without padding.
        output: Folder or URL of the files. It is empty, or holds a part of the same export, which
            is continued.
        split: The split that the instances are from; all of its passes are written.
        seq_len: Sequence length of the instances; null means the only one there is.
    """

    format: Literal["tfrecord", "parquet"]
    output: str
    split: Literal["train", "validation"] = "train"
    seq_len: int | None = None


def _run_stage(name: str) -> Callable[["BuildSettings", Sequence[str]], None]:
    """What `python -m pipeline build`, vocab, tokens or shards calls."""

    def run(settings: "BuildSettings", beam_arguments: Sequence[str]) -> None:
        with _continuing():
            from pipeline.stages import build

            getattr(build, f"run_{name}")(settings, beam_arguments)

    return run


build, vocab, tokens, shards = map(_run_stage, ("build", "vocab", "tokens", "shards"))


@contextlib.contextmanager
def _continuing() -> Iterator[None]:
    """Says of a build or export that was interrupted, but within a job, which says it itself, that it can go on."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"{INTERRUPTED}; what is finished is kept, the same command continues"
        ) from error


def verify(settings: VerifySettings, _: Sequence[str]) -> int:
    """`python -m pipeline verify DATASET`: exit code 2 and a line for each finding, or 0."""
    from tqdm import tqdm

    from pipeline.inspect.deep_verify import DeepCheck
    from pipeline.machine import this_machine
    from pipeline.shards.verify import describe_coverage, verify_dataset

    dataset = _open(settings)
    total = sum(shard.num_bytes for shard in dataset.all_shards)
    check = DeepCheck(dataset) if settings.deep else None
    largest = max((shard.num_bytes for shard in dataset.all_shards), default=0)
    threads, _ = this_machine().limit(_CHECKED_AT_ONCE, len(dataset.all_shards), 2 * largest)
    with tqdm(total=total, desc="verify", unit="B", unit_scale=True, disable=None) as bar:
        findings = verify_dataset(
            dataset,
            threads,
            lambda shard: bar.update(shard.num_bytes),
            check or (lambda _shard, _block: ()),
        )
    for line in check.describe() if check else ():
        print(line)
    findings += check.findings() if check else ()
    for finding in findings:
        print(finding)
    if findings:
        print(
            f"{settings.data}: {len(findings)} finding(s); restore the files named or rebuild the dataset"
        )
        return 2
    instances = sum(shard.instances for shard in dataset.all_shards)
    print(f"{settings.data}: sound, {len(dataset.all_shards)} shards, {instances:,} instances")
    print(describe_coverage(dataset.manifest, dataset.all_shards))
    print(f"root hash {dataset.manifest.root_hash}")
    return 0


def inspect(settings: InspectSettings, _: Sequence[str]) -> None:
    """`python -m pipeline inspect DATASET`."""
    from pipeline.inspect.show import show_instances
    from pipeline.inspect.summary import load_report, tokens_url
    from pipeline.storage.folder import parse_storage_options
    from pipeline.tokens.provenance import describe_documents, find_tokens

    dataset = _open(settings)
    if settings.dropped:
        _print_dropped(dataset)
        return
    tokens = find_tokens(
        dataset, tokens_url(load_report(dataset)), parse_storage_options(settings.storage_options)
    )
    if settings.documents:
        if tokens is None:
            raise FileNotFoundError(f"{settings.data}: {_NO_PLACES}; build again to find out")
        print("\n".join(describe_documents(dataset, tokens, settings.documents)))
        return
    seq_len = settings.seq_len or min(group.seq_len for group in dataset.manifest.groups)
    for text in show_instances(dataset, settings.split, seq_len, settings.num_instances, tokens):
        print(f"{text}\n")
    if tokens is None:
        print(_NO_PLACES)


def _print_dropped(dataset: "Dataset") -> None:
    from pipeline.inspect.show import format_dropped
    from pipeline.inspect.summary import read_report

    numbers = read_report(dataset)["dataset"]
    examples = (numbers["documents"] or {}).get("dropped_examples")
    print("\n".join(format_dropped(examples, numbers["counters"])))


def report(settings: ReportSettings, _: Sequence[str]) -> None:
    """`python -m pipeline report DATASET`."""
    from pipeline.inspect.summary import (
        REPORT_PAGE,
        format_report,
        load_report,
        read_report,
        write_page,
        write_report,
    )
    from pipeline.storage.folder import Folder

    dataset = _open(settings)
    found = read_report(dataset)
    print(format_report(found))
    folder, name = dataset.folder, REPORT_PAGE
    if settings.output is not None:
        folder, name = Folder.of_file(settings.output)
    elif found != load_report(dataset):
        write_report(dataset, found)  # the page says that its numbers stand beside it
    write_page(found, folder, name)
    print(f"page        {settings.output or dataset.locate(REPORT_PAGE)}")


def export(settings: ExportSettings, _: Sequence[str]) -> None:
    """`python -m pipeline export DATASET`."""
    with _continuing():
        from pipeline.export.write_export import describe_export, plan_export, write_export
        from pipeline.storage.folder import Folder, parse_storage_options

        dataset = _open(settings)
        plan = plan_export(dataset, settings.format, settings.split, settings.seq_len)
        output = Folder(settings.output, parse_storage_options(settings.storage_options))
        write_export(dataset, plan, output)
        print(describe_export(plan, settings.output))


def _open(settings: DatasetSettings) -> "Dataset":
    from pipeline.shards.dataset import open_dataset
    from pipeline.storage.folder import parse_storage_options

    return open_dataset(settings.data, parse_storage_options(settings.storage_options))


def main() -> int:
    """Runs the command that the process's arguments name."""
    leave_out_beams_client()
    return run_program(
        "python -m pipeline", "Raw text to shards of BERT pretraining instances.", COMMANDS
    )


def leave_out_beams_client() -> None:
    """Leaves out what Beam says on import, through the root logger: an optional client of Google's is absent."""
    logging.getLogger().addFilter(lambda record: "apitools not found" not in record.getMessage())
