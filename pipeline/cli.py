"""Defines the commands of `python -m pipeline`, which build a dataset and look at it.

Each command imports the modules that it needs when it runs, so that `--help` appears at once.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from pipeline.command_line.program import Command, check_least, run_program
from pipeline.interrupts import INTERRUPTED, Interrupted
from pipeline.storage.terminal import say

if TYPE_CHECKING:
    from pipeline.settings import BuildSettings
    from pipeline.shards.dataset import Dataset

_CHECKED_AT_ONCE = 4
"""The most shards that `verify` holds in memory at once; fewer if less memory is free."""
_NO_PLACES = (
    "where documents come from is not known: the encoded documents (tokens/), which say it,"
    " are gone"
)

# Fields of BuildSettings that the help of a stage leaves out, because the stage does not use them.
_OF_INSTANCES = (
    "instances", "seq_lens", "passes", "seed", "short_seq_prob", "masked_lm_prob",
    "max_predictions", "whole_word_masking", "nsp_balance", "num_buckets", "max_unknown",
    "max_random_next", "validation_fraction", "exchange", "plan",
)  # fmt: skip
_NOT_OF_VOCAB = (
    "language", "near_duplicates", "exclude_documents_of", "task_files", "task_overlap",
    "validation_tokens", "tokens",
)  # fmt: skip
_NOT_OF_SHARDS = (
    "input", "on_bad_document", "vocab", "extend", "vocab_size", "num_unused", "alphabet_size",
    "vocab_entries", "part_bytes", "plan",
)  # fmt: skip


def _stage(name: str, summary: str, unused: Sequence[str] = (), says: str = "") -> Command:
    """Describes `build`, or one of its stages such as `vocab`, as a command of the program.

    Args:
        name: The command's name. It runs the function of this module that has the same name.
        summary: One line for the list of commands.
        unused: Names of the settings that `--help` leaves out.
        says: The first sentence of `--help`. If it is empty, `--help` begins with the docstring of
            BuildSettings.
    """
    return Command(
        summary,
        "pipeline.settings:BuildSettings",
        f"pipeline.cli:{name}",
        takes_remainder=True,
        unused=tuple(unused),
        description=says and f"{says} Flags of the other stages are taken too, and not looked at.",
    )


def _look(name: str, summary: str) -> Command:
    """Describes a command that reads a finished dataset, such as `verify`.

    It runs the function of this module that has the same name. Its settings are the class
    NAMESettings of this module, such as VerifySettings.

    Args:
        name: The command's name.
        summary: One line for the list of commands.
    """
    settings = f"pipeline.cli:{name.capitalize()}Settings"
    return Command(summary, settings, f"pipeline.cli:{name}", positionals=("data",))


COMMANDS = {
    "build": _stage("build", "make a dataset from raw text: vocab, tokens and shards in turn"),
    "vocab": _stage(
        "vocab",
        "learn a vocabulary from text, or take one: vocab.txt and tokenizer.json",
        (*_OF_INSTANCES, *_NOT_OF_VOCAB),
        "Learns a vocabulary from text, or takes one: vocab.txt and tokenizer.json.",
    ),
    "tokens": _stage(
        "tokens",
        "encode the documents of text with a vocabulary",
        _OF_INSTANCES,
        "Encodes the documents of text, with the vocabulary that is there or is made.",
    ),
    "shards": _stage(
        "shards",
        "make a dataset of encoded documents",
        _NOT_OF_SHARDS,
        "Makes a dataset of documents that tokens encoded with the same settings.",
    ),
    "verify": _look("verify", "read a dataset once and say what is wrong"),
    "inspect": _look("inspect", "show instances in readable form"),
    "report": _look("report", "show what a dataset holds"),
    "export": _look("export", "write a dataset's instances in the files that other trainers read"),
    "redact": _look("redact", "make a dataset without the instances of some documents"),
}


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """Settings of every command that reads a finished dataset.

    Attributes:
        data: Folder or URL of the dataset.
        storage_options: Options of the filesystems, as JSON or @FILE. The usual environment
            variables count too.
    """

    data: str
    storage_options: str | None = None


@dataclass(frozen=True, kw_only=True)
class VerifySettings(DatasetSettings):
    """Settings of `verify`, which reads a whole dataset once and says all that is wrong with it.

    Attributes:
        deep: Whether every instance is also checked against BERT's rules (docs/parity.md), and
            whether random draws are tested, such as the share of [MASK] among masked positions.
        absent: A list of documents, as `redact --documents` takes it, none of which may be in the
            dataset.
    """

    deep: bool = False
    absent: str | None = None


@dataclass(frozen=True, kw_only=True)
class InspectSettings(DatasetSettings):
    """Settings of `inspect`, which shows instances, masked words as [shown>original], or documents.

    Attributes:
        num_instances: How many instances are shown, from the first on.
        split: The split that the instances are from.
        seq_len: Sequence length of the instances; null means the shortest there is.
        documents: Documents to show in place of instances: where each is from and how often it is
            used. Give the id of each, or its first digits. The 16 hex digits that are shown with an
            instance are enough.
        dropped: Whether to show some of the dropped documents for each reason, in place of
            instances. Documents that are copies of others are only counted.
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
    """Settings of `report`, which prints what a dataset holds and writes it as an HTML page.

    The page shows documents, dropped documents, lengths, masks and some instances.

    Attributes:
        output: File or URL of the page; null means report.html in the dataset.
    """

    output: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExportSettings(DatasetSettings):
    """Settings of `export`, which writes the instances of a dataset to files for other trainers.

    The instances are those of one split and sequence length. Each shard becomes one file.

    Attributes:
        format: Format of the files: tfrecord is what run_pretraining.py of google-research/bert
            reads; parquet has a row for each instance, without padding.
        output: Folder or URL of the files. It must be empty. If it holds a part of the same export,
            the missing files are added.
        split: The split that the instances are from, with all of its passes.
        seq_len: Sequence length of the instances; null means the only one there is.
    """

    format: Literal["tfrecord", "parquet"]
    output: str
    split: Literal["train", "validation"] = "train"
    seq_len: int | None = None


@dataclass(frozen=True, kw_only=True)
class RedactSettings(DatasetSettings):
    """Settings of `redact`, which makes a dataset without the instances of some documents.

    Only shards that hold such an instance are written anew, all others are linked or copied
    (docs/forgetting.md). The same command again continues one that was interrupted.

    Attributes:
        documents: A file whose lines begin with the ids of the documents, or their first 16 hex
            digits, as `trainer forget` takes it.
        output: Folder or URL of the new dataset. `data` is never changed.
        plan: Whether to say what would be done, and do nothing.
    """

    documents: str
    output: str
    plan: bool = False


def _run_stage(settings: "BuildSettings", beam_arguments: Sequence[str], *, name: str) -> None:
    """Runs `build` or one of its stages.

    Args:
        settings: The settings of the build.
        beam_arguments: The arguments after `--`, which are options of Beam.
        name: The command: build, vocab, tokens or shards.
    """
    with _continuing():
        # Settings and input are checked before Beam is imported, which takes seconds of CPU.
        from pipeline.stages.corpus import check_encoded, check_given, find_corpus

        if name == "shards":
            check_encoded(settings)
        corpus = [] if name == "shards" else [find_corpus(settings)]
        check_given(settings, name)

        from pipeline.stages import build

        getattr(build, f"run_{name}")(settings, beam_arguments, *corpus)


build = partial(_run_stage, name="build")
vocab = partial(_run_stage, name="vocab")
tokens = partial(_run_stage, name="tokens")
shards = partial(_run_stage, name="shards")


@contextlib.contextmanager
def _continuing() -> Iterator[None]:
    """Tells the user how to continue, if the command is interrupted within the context.

    A KeyboardInterrupt becomes Interrupted. Its message says that finished results are kept, and
    that the same command continues. An Interrupted that a Beam job has raised already has such a
    message, and passes unchanged.

    Raises:
        Interrupted: The command was interrupted within the context.
    """
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        message = f"{INTERRUPTED}; what is finished is kept, the same command continues"
        raise Interrupted(message) from error


def verify(settings: VerifySettings, _: Sequence[str]) -> int:
    """Runs `verify`: prints a line for each finding, and returns exit code 2, or 0 without any."""
    from tqdm import tqdm

    from pipeline.inspect.deep_verify import DeepCheck
    from pipeline.machine import this_machine
    from pipeline.shards.absent_documents import AbsentDocuments
    from pipeline.shards.document_list import read_document_list
    from pipeline.shards.redactions import describe_redactions
    from pipeline.shards.verify import describe_coverage, verify_dataset
    from pipeline.storage.folder import parse_storage_options

    dataset = _open(settings)
    shards = dataset.all_shards
    sizes = [shard.num_bytes for shard in shards]
    deep = DeepCheck(dataset) if settings.deep else None
    options = parse_storage_options(settings.storage_options)
    listed = read_document_list(settings.absent, options) if settings.absent else ()
    absent = AbsentDocuments(dataset, listed) if listed else None
    checks = [check for check in (deep, absent) if check]
    threads, _ = this_machine().limit(_CHECKED_AT_ONCE, len(shards), 2 * max(sizes, default=0))
    with tqdm(total=sum(sizes), desc="verify", unit="B", unit_scale=True, disable=None) as bar:
        findings = verify_dataset(
            dataset,
            threads,
            lambda shard: bar.update(shard.num_bytes),
            lambda shard, block: [what for check in checks for what in check(shard, block)],
        )

    for line in deep.describe() if deep else ():
        say(line)
    for check in checks:
        findings += check.findings()
    for finding in findings:
        say(str(finding))
    if findings:
        say(
            f"{settings.data}: {len(findings)} finding(s); restore the files named or"
            " rebuild the dataset"
        )
        return 2

    instances = sum(shard.instances for shard in shards)
    say(f"{settings.data}: sound, {len(shards)} shards, {instances:,} instances")
    say(describe_coverage(dataset.manifest, shards))
    for sentence in describe_redactions(dataset.manifest.settings):
        say(sentence)
    if listed:
        say(
            f"none of the {len(listed):,} document(s) of {settings.absent} is in it: neither in an"
            " instance nor in documents.ids"
        )
    say(f"root hash {dataset.manifest.root_hash}")
    return 0


def inspect(settings: InspectSettings, _: Sequence[str]) -> None:
    """Runs `inspect`: prints instances, documents, or examples of dropped documents."""
    from pipeline.inspect.show import show_instances
    from pipeline.inspect.summary import load_report, tokens_url
    from pipeline.storage.folder import parse_storage_options
    from pipeline.tokens.provenance import describe_documents, find_tokens

    dataset = _open(settings)
    if settings.dropped:
        _print_dropped(dataset)
        return

    report = load_report(dataset)
    options = parse_storage_options(settings.storage_options)
    tokens = find_tokens(dataset, tokens_url(report), options)
    if settings.documents:
        if tokens is None:
            raise FileNotFoundError(f"{settings.data}: {_NO_PLACES}; build again to find out")
        say("\n".join(describe_documents(dataset, tokens, settings.documents)))
        return

    for reading in report.get("build", {}).get("readings", ()):
        say(reading)
    seq_len = settings.seq_len or min(group.seq_len for group in dataset.manifest.groups)
    for text in show_instances(dataset, settings.split, seq_len, settings.num_instances, tokens):
        say(f"{text}\n")
    if tokens is None:
        say(_NO_PLACES)


def _print_dropped(dataset: "Dataset") -> None:
    """Prints the number of dropped documents for each reason, with some examples."""
    from pipeline.inspect.show import format_dropped
    from pipeline.inspect.summary import read_report

    numbers = read_report(dataset)["dataset"]
    examples = (numbers["documents"] or {}).get("dropped_examples")
    say("\n".join(format_dropped(examples, numbers["counters"])))


def report(settings: ReportSettings, _: Sequence[str]) -> None:
    """Runs `report`: prints what a dataset holds, and writes the HTML page and report.json."""
    from pipeline.inspect.summary import (
        REPORT_PAGE,
        format_report,
        load_report,
        read_report,
        write_page,
        write_report,
    )
    from pipeline.storage.folder import Folder, parse_storage_options

    dataset = _open(settings)
    content = read_report(dataset)
    say(format_report(content))

    folder = dataset.folder
    name = REPORT_PAGE
    if settings.output is not None:
        options = parse_storage_options(settings.storage_options)
        folder, name = Folder.of_file(settings.output, options)
    elif content != load_report(dataset):
        write_report(dataset, content)  # the page says that report.json beside it has its numbers
    write_page(content, folder, name)
    say(f"page        {settings.output or dataset.locate(REPORT_PAGE)}")


def export(settings: ExportSettings, _: Sequence[str]) -> None:
    """Runs `export`: writes the instances to files, and prints how they are read."""
    with _continuing():
        from pipeline.export.write_export import describe_export, plan_export, write_export
        from pipeline.storage.folder import Folder, parse_storage_options
        from pipeline.storage.local import scratch_folder

        dataset = _open(settings)
        plan = plan_export(dataset, settings.format, settings.split, settings.seq_len)
        output = Folder(settings.output, parse_storage_options(settings.storage_options))
        with scratch_folder(output.locate()):
            write_export(dataset, plan, output)
        say(describe_export(plan, settings.output))


def redact(settings: RedactSettings, _: Sequence[str]) -> None:
    """Runs `redact`: prints the plan, and writes the new dataset unless only the plan is wanted."""
    from pipeline.redaction.plan import plan_redaction
    from pipeline.storage.folder import Folder, parse_storage_options
    from pipeline.storage.local import scratch_folder
    from pipeline.tokens.dataset_ids import open_with_ids

    options = parse_storage_options(settings.storage_options)
    output = Folder(settings.output, options)
    with _continuing(), scratch_folder(output.locate()):
        dataset = open_with_ids(settings.data, options)
        plan = plan_redaction(dataset, settings.documents, options)

        from pipeline.redaction.write import check_output, describe_plan, write_redaction

        is_finished = check_output(plan, output)
        for line in describe_plan(plan, settings.documents, output):
            say(line)
        if settings.plan:
            return
        redacted = write_redaction(plan, output)
    if is_finished:
        say(f"{settings.output} was finished before")
    say(f"root hash {redacted.manifest.root_hash}\n{settings.output} is complete")


def _open(settings: DatasetSettings) -> "Dataset":
    """Opens the dataset that the settings name."""
    from pipeline.shards.dataset import open_dataset
    from pipeline.storage.folder import parse_storage_options

    return open_dataset(settings.data, parse_storage_options(settings.storage_options))


def main(argv: list[str] | None = None) -> int:
    """Runs a command of `python -m pipeline`, such as `["build", "--config", "data.yaml"]`.

    Args:
        argv: The command and its flags; None takes those of this process.

    Returns:
        The exit code: 0 if the command succeeded. Errors that a user can mend are printed in one
        line.
    """
    leave_out_beams_client()
    description = "Raw text to shards of BERT pretraining instances."
    return run_program("python -m pipeline", description, COMMANDS, argv)


def leave_out_beams_client() -> None:
    """Hides the message that Beam logs, when it is imported, if apitools is not installed.

    Beam needs this package only for some of Google's services, which most users do not use.
    """
    logging.getLogger().addFilter(lambda record: "apitools not found" not in record.getMessage())
