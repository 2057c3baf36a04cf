"""Checks the inputs of a build, its vocabularies and its filters, before any heavy import.

Importing Beam takes CPU-seconds, so this module does not import it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pipeline.documents.listing import would_list
from pipeline.documents.parts import InputFile, Part, choose_part_bytes, find_inputs, plan_parts
from pipeline.documents.readings import check_text_field, describe_readings
from pipeline.documents.sentence_lines import SENTENCE_LINES
from pipeline.documents.source import Source
from pipeline.settings import BuildSettings
from pipeline.storage.folder import Folder
from pipeline.storage.hub import fetch_from_hub, is_hub_name
from pipeline.storage.secret_values import show
from pipeline.storage.terminal import say
from pipeline.text.filters import DocumentFilter
from pipeline.tokens.dataset_ids import open_with_ids
from tokenizer.vocab import Vocabulary, parse_vocab

VOCAB = "vocab.txt"
STORE = "tokens.json"
DELIVERED = "parts.json"
"""Names the token parts that a Beam pipeline has written by `WriteTokens`; it is written last."""
_NUM_SHOWN = 8  # files named in one line


class Corpus(NamedTuple):
    """The input of a build.

    Attributes:
        files: Its files, each with the number of its source.
        parts: The parts that the files are cut into, source by source.
        readings: Lines for the user about how the files of each source are read.
    """

    files: list[InputFile]
    parts: list[Part]
    readings: list[str]


def check_given(settings: BuildSettings, command: str) -> None:
    """Checks everything that a command's settings name, except for its input.

    Args:
        settings: The settings.
        command: "build", "vocab", "tokens" or "shards"; only what this command uses is checked.

    Raises:
        FileNotFoundError: A vocabulary, a task file or a dataset to exclude is not there.
        ValueError: One of them is malformed, or a filter cannot be imported.
    """
    options = settings.filesystem_options()
    DocumentFilter(settings.filter_rule)
    vocabularies = (settings.vocab, settings.extend) if command != "shards" else ()
    for url in filter(None, vocabularies):
        if url.endswith(".txt") or not is_hub_name(url):  # a model of the Hub is fetched later
            read_vocabulary(settings, url)
    if command == "vocab":
        return
    if settings.task_files:
        find_inputs(settings.task_files, options)
    for url in settings.exclude_documents_of:
        open_with_ids(url, options)


def check_encoded(settings: BuildSettings) -> None:
    """Checks that the encoded documents and their vocabulary are there.

    Raises:
        FileNotFoundError: The encoded documents or their vocabulary are missing.
    """
    tokens = settings.open_tokens()
    output = settings.open_output()
    if not tokens.exists(DELIVERED) and not tokens.exists(STORE):
        raise FileNotFoundError(
            f"{tokens.locate()} holds no {STORE}: run `python -m pipeline tokens` first"
        )
    if not output.exists(VOCAB):
        raise FileNotFoundError(
            f"{output.locate(VOCAB)} is missing; run `python -m pipeline tokens` with this --output"
            " first, which writes it"
        )


def find_corpus(settings: BuildSettings) -> Corpus:
    """Lists the files of the input, cuts them into parts, and says how each source is read.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        ValueError: No input is named, all files of a source are empty, two sources hold the same
            file, the output is inside the input, or a file does not have the field of the text.
    """
    if not (settings.input or settings.sources):
        raise ValueError(
            "no input: give --input FILE_FOLDER_OR_GLOB ..., or `sources:` in the --config file"
        )
    options = settings.filesystem_options()
    _refuse_output_in_input(settings)
    left_out: list[str] = []
    files = [
        replace(file, source=number)
        for number, source in enumerate(settings.corpus)
        for file in find_inputs(source.input, options, left_out)
    ]
    _refuse_shared_files(settings.corpus, files)
    _say_what_is_left_out(left_out)
    if settings.output.startswith("hf://") and not settings.output.startswith("hf://buckets/"):
        say(
            f"{settings.output}: every file becomes a commit, and the Hub takes 128 an hour;"
            " build into a folder and publish it with hf upload (docs/input.md)",
            is_aside=True,
        )

    part_bytes = choose_part_bytes(files, settings.part_bytes)
    parts: list[Part] = []
    for number, source in enumerate(settings.corpus):
        source_files = [file for file in files if file.source == number]
        parts += plan_parts(source_files, source.format, part_bytes, options, source.wrapping)
    _say_what_was_detected(settings.corpus, parts)
    return Corpus(files, parts, _say_how_sources_are_read(settings, parts))


def _say_what_is_left_out(urls: Sequence[str]) -> None:
    """Tells the user which files in the folders of the input are not read, such as READMEs."""
    if urls:
        shown = ", ".join(map(show, urls[:_NUM_SHOWN])) + ", ..." * (len(urls) > _NUM_SHOWN)
        say(
            f"input: {len(urls):,} file(s) of the folders speak of the data and are left out:"
            f" {shown}; name a file in --input to read it"
        )


def _refuse_shared_files(sources: Sequence[Source], files: Sequence[InputFile]) -> None:
    """Raises ValueError if a file is in the input of several sources."""
    owners: dict[str, int] = {}
    for file in files:
        owner = owners.setdefault(file.url, file.source)
        if owner != file.source:
            names = " and ".join(sources[number].name for number in (owner, file.source))
            raise ValueError(
                f"{file.url} is in the input of the sources {names};"
                " a file belongs to one source only"
            )


def _refuse_output_in_input(settings: BuildSettings) -> None:
    """Raises ValueError if the input would match files of the output or the token parts.

    Otherwise the same command, given again, would read what it wrote the first time.
    """
    options = settings.filesystem_options()
    patterns = [pattern for source in settings.corpus for pattern in source.input]
    for pattern in patterns:
        for flag, folder in (("output", settings.output), ("tokens", settings.tokens_folder)):
            if would_list(pattern, folder, options):
                raise ValueError(
                    f"--{flag} {folder} lies in the input {pattern}, so that running again would"
                    f" read what was written as text; give another --{flag}, or an --input that"
                    " leaves it out"
                )


def _say_how_sources_are_read(settings: BuildSettings, parts: Sequence[Part]) -> list[str]:
    """Prints how each source is read, with the beginning of a document, before any work is done.

    Returns:
        The lines that were printed.

    Raises:
        ValueError: A source, or a file of it, does not have the field of the text.
    """
    options = settings.filesystem_options()
    lines: list[str] = []
    for number, source in enumerate(settings.corpus):
        source_parts = [part for part in parts if part.source == number]
        is_counted = settings.on_bad_document != "stop"
        check_text_field(source_parts, source.text_field, options, counts_bad_lines=is_counted)
        readings = describe_readings(source_parts, source.text_field, options)
        lines += [f"{source.name}: {line}" for line in readings]
    for line in lines:
        say(line)
    return lines


def _say_what_was_detected(sources: Sequence[Source], parts: Sequence[Part]) -> None:
    """Tells the user if plain text was detected as one sentence per line.

    Such a file becomes several documents, which the user may not expect of a text file.
    """
    for number, source in enumerate(sources):
        source_parts = [part for part in parts if part.source == number]
        ranges = [file_range for part in source_parts for file_range in part.ranges]
        detected = [file_range for file_range in ranges if file_range.format == SENTENCE_LINES]
        urls = sorted({file_range.url for file_range in detected})
        if urls and source.format == "auto":
            say(
                f"{source.name}: {len(urls):,} file(s), such as {show(urls[0])}, hold a sentence a"
                f" line and blank lines between documents: read as {SENTENCE_LINES}; if each file"
                " is one document, give --format text"
            )


def read_vocabulary(settings: BuildSettings, url: str) -> Vocabulary:
    """Reads a vocabulary from a vocab.txt, from the folder of a model, or from a model of the Hub.

    Args:
        settings: Settings of the build, of which only the filesystem options are used.
        url: Path or URL of the file or folder, or the name of a model of the Hub.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not a vocabulary of BERT.
    """
    if not url.endswith(".txt") and is_hub_name(url):
        url = str(fetch_from_hub(url, (VOCAB,)))
    if Path(url).is_dir():
        url = f"{url}/{VOCAB}"
    folder, name = Folder.of_file(url, settings.filesystem_options())
    if not folder.is_file(name):
        raise FileNotFoundError(f"{url}: no such file; expected a vocab.txt")
    return parse_vocab(folder.read(name), url)
