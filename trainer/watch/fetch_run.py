"""Copies the files of runs at URLs to this machine while a report is made."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.storage.faults import reread_damaged
from pipeline.storage.folder import Folder
from pipeline.storage.local import replace_file, scratch_folder
from trainer.runs.run_folder import CONFIG, LEFT_OUT, RUN_FACTS, RunFolder


@contextlib.contextmanager
def fetched_runs(
    names: Sequence[str], storage_options: Mapping[str, Any] | None = None
) -> Iterator[tuple[list[str], Callable[[str], str]]]:
    """Copies runs that are at URLs into a temporary folder, for as long as the `with` block lasts.

    Args:
        names: For each run, its folder on this machine or its URL (`--checkpoint.url`). Only runs
            at URLs are copied.
        storage_options: Options of the filesystem of the URLs.

    Yields:
        The local folder of each run, in the order of `names`; and a function for messages, which
        takes a text and returns it with the path of every copy replaced by the run's URL.

    Raises:
        FileNotFoundError: A URL holds no run.
    """
    with contextlib.ExitStack() as stack:
        folders: list[str] = []
        urls: dict[str, str] = {}
        remote = [name for name in names if not Folder(name, storage_options).is_local]
        scratch = stack.enter_context(scratch_folder(remote[0])) if remote else Path()
        for number, name in enumerate(names):
            if name not in remote:
                folders.append(name)
                continue
            folder = scratch / str(number) / name.rstrip("/").rpartition("/")[2]
            _fetch(Folder(name, storage_options), RunFolder(folder))
            folders.append(str(folder))
            urls[str(folder.resolve())] = name

        def show(text: str) -> str:
            for path, url in urls.items():
                text = text.replace(path, url)
            return text

        yield folders, show


def _fetch(store: Folder, run: RunFolder) -> None:
    """Copies the files that a report needs: run.json, config.yaml, rows of steps, left_out.txt.

    Args:
        store: The run's folder at its URL.
        run: The local folder for the copies.

    Raises:
        FileNotFoundError: The URL holds no run.
    """
    name = run.anomalies.name
    try:
        if store.exists(name):  # earlier versions did not upload it
            replace_file(run.anomalies, store.read(name))
        for name in (RUN_FACTS, CONFIG, run.metrics.name):
            read = partial(store.read, name)
            data = reread_damaged(read, is_local=False, is_expected=True)
            replace_file(run.path / name, data)
        if store.exists(LEFT_OUT):
            replace_file(run.left_out, store.read(LEFT_OUT))
    except FileNotFoundError as error:
        found = f"{store.url} holds no run: {name} is missing"
        cure = "give the --checkpoint.url of a pretrain command"
        raise FileNotFoundError(f"{found}; {cure}") from error
