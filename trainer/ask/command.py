"""Runs `python -m trainer ask`."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.storage.folder import Folder, parse_storage_options
from pipeline.storage.secret_values import hide
from pipeline.storage.terminal import say
from trainer.ask.answers import Record, answer_documents, answer_steps, name_documents
from trainer.ask.asked_run import AskedRun, opened_run
from trainer.ask.origins import Origins
from trainer.ask.page import render_answer
from trainer.ask.settings import AskSettings
from trainer.ask.step_instances import StepReader
from trainer.ask.table import format_records

_ORIGINS_LOST = (
    "where documents are from is not known any more: the encoded documents (tokens/) of {} are gone"
)


def answer(settings: AskSettings) -> None:
    """Answers the question of the settings, and prints or writes the answer.

    Raises:
        FileNotFoundError: There is no run, or a dataset or a file of it is gone.
        ValueError: The question does not fit the run, or a file is damaged.
    """
    options = parse_storage_options(settings.storage_options)
    refuse_homeless_page(settings)
    with opened_run(settings.run, settings.data, options, settings.cache_dir) as run:
        write_answer(settings, _answer(run, settings, options))


def refuse_homeless_page(settings: AskSettings) -> None:
    """Raises a ValueError if a page is asked for and it is not known where it goes."""
    if settings.format == "html" and settings.output is None and "://" in settings.run:
        raise ValueError(
            f"{settings.run} is no folder of this machine: --output says which file the page goes"
            " to"
        )


def write_answer(settings: AskSettings, records: Iterable[Record]) -> None:
    """Prints the records of an answer, or writes them to a file, in the format that was asked for.

    Args:
        settings: The settings of the command.
        records: The records.
    """
    options = parse_storage_options(settings.storage_options)
    if settings.format == "html":
        page = render_answer(settings.run, _describe(settings), records)
        _write(settings.output or f"{settings.run}/ask.html", [page], options)
        return
    lines = _as_json(records) if settings.format == "jsonl" else format_records(records)
    if settings.output is not None:
        _write(settings.output, (f"{line}\n" for line in lines), options)
        return
    for line in lines:
        say(line)


def _answer(
    run: AskedRun, settings: AskSettings, options: Mapping[str, Any] | None
) -> Iterator[Record]:
    """Checks the question, and returns an iterator that makes the records of the answer.

    Whether the documents and steps that were asked for exist is checked before this returns, as far
    as it can be known without reading instances.

    Args:
        run: The run.
        settings: The settings of the command, with the question.
        options: Options of the filesystem of the encoded documents.

    Raises:
        FileNotFoundError: A file of `--text` is missing.
        ValueError: The run has not made a step, no dataset has a document, or `--spikes` was asked
            of a run at a URL that has no anomalies.jsonl.
    """
    aside = partial(say, is_aside=True)
    lookup = Origins(run.mixture, options)
    origins = open_origins(run, lookup) if settings.origins else None
    if settings.document or settings.text:
        documents = name_documents(run, settings.document, settings.text, lookup)
        return answer_documents(run, documents, origins, settings.cache_dir, aside)
    reader = StepReader(run)
    if settings.spikes:
        if not run.knows_refused:
            raise ValueError(
                f"{run.name} has no anomalies.jsonl: the version that trained it kept this file in"
                " the run's own folder alone; ask on the machine that has it, or give --step"
            )
        if not run.anomalies:
            aside(f"{settings.run}: the gradients of all steps were used")
        return answer_steps(run, reader.read_refused(), origins)
    reader.refuse_not_made(settings.steps)
    return answer_steps(run, reader.read(settings.steps), origins)


def open_origins(run: AskedRun, origins: Origins) -> Origins:
    """Returns `origins`, and says on standard error which datasets' documents it cannot look up."""
    lost = [
        source.dataset.url
        for dataset, source in enumerate(run.mixture)
        if origins.tokens(dataset) is None
    ]
    if lost:
        say(_ORIGINS_LOST.format(", ".join(lost)), is_aside=True)
    return origins


def _as_json(records: Iterable[Record]) -> Iterator[str]:
    """Yields each record as one line of JSON, without secrets."""
    return (hide(json.dumps(record, ensure_ascii=False)) for record in records)


def _describe(settings: AskSettings) -> str:
    """Returns the question in words, for the title of the HTML page."""
    if settings.spikes:
        return "Steps whose gradients were not used"
    if settings.certificate is not None:
        return f"Claims of {settings.certificate}"
    if settings.blame is not None:
        return f"What makes the gradient of step {settings.blame}"
    if settings.step is not None:
        return f"Step {settings.step}"
    return f"Steps that read {', '.join([*settings.document, *settings.text])}"


def _write(output: str, texts: Iterable[str], options: Mapping[str, Any] | None) -> None:
    """Writes texts to a file or a URL, whole or not at all, and prints its name.

    Args:
        output: The path or URL of the file.
        texts: The parts of the file's content, in order.
        options: Options of the file's filesystem.
    """
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="beambert-ask-") as file:
        for text in texts:
            file.write(text)
        file.flush()
        folder, name = Folder.of_file(output, options)
        folder.write(name, Path(file.name))
    say(output)
