"""A run's copy at a URL: its checkpoints, and the files that a wiped node needs besides.

URL/run.json, config.yaml, vocab.txt, tokenizer.json, metrics.jsonl
URL/checkpoints/step-00000600/...       COMMITTED is uploaded last: what lacks it does not count
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.storage.faults import StorageError
from pipeline.storage.folder import Folder
from pipeline.storage.local import make_durable, replace_file, scratch_folder
from trainer.checkpoints.read import COMMITTED, is_checkpoint, read_marker, remove_folders
from trainer.runs.run_folder import CONFIG, RUN_FACTS, VOCABULARY_HASHES, RunFolder, parse_facts

CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
RUN_FILES = (RUN_FACTS, CONFIG, *VOCABULARY_HASHES)


class CheckpointStore:
    """Where a run's checkpoints are uploaded to and come back from: a URL of this run alone."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.url = url.rstrip("/")
        self.folder = Folder(url, storage_options)

    def locate(self, name: str) -> str:
        """The URL of a file."""
        return self.folder.locate(name)

    def list_checkpoints(self) -> tuple[list[str], list[str]]:
        """Names of committed checkpoints, oldest first, and of those whose upload never ended."""
        found = (self.folder / CHECKPOINTS).list()
        folders = sorted({name.partition("/")[0] for name in found})
        # Anything else is not ours to remove.
        names = [name for name in folders if is_checkpoint(name)]
        finished = [name for name in names if f"{name}/{COMMITTED}" in found]
        return finished, [name for name in names if name not in finished]

    def upload(self, folder: Path, checkpoint: str, names: Iterable[str]) -> None:
        """Uploads files of a checkpoint from the folder where they lie."""
        for name in names:
            try:
                self.folder.write(f"{CHECKPOINTS}/{checkpoint}/{name}", folder / name)
            except StorageError as error:
                result = (
                    f"the checkpoint {checkpoint} was not uploaded, those before it are untouched"
                )
                raise StorageError(f"{error}; {result}") from error

    def upload_run(self, run: RunFolder) -> None:
        """Uploads the run's files, run.json last, as a URL that has it holds a run, and metrics."""
        for name in reversed(RUN_FILES):
            self.folder.write(name, (run.path / name).read_bytes())
        if run.metrics.exists():
            rows = run.metrics.read_bytes()  # the loop may be adding to it
            self.folder.write(METRICS, rows[: rows.rfind(b"\n") + 1])

    def read_facts(self) -> dict[str, Any] | None:
        """run.json; None where the URL holds no run, a ValueError where it is damaged."""
        try:
            data = self.folder.read(RUN_FACTS)
        except FileNotFoundError:
            return None
        return parse_facts(data, self.locate(RUN_FACTS))

    def fetch_files(self, names: Sequence[str], folder: Path) -> None:
        """Downloads files of the run, named relative to it, to a folder."""
        for name in names:
            replace_file(folder / name, self.folder.read(name))

    def fetch_checkpoint(
        self, name: str, checkpoints: Path, files: Iterable[str] | None = None
    ) -> Path:
        """Downloads a checkpoint, or some files; its folder appears when all are there."""
        folder, url = checkpoints / f"{name}.tmp", self.locate(f"{CHECKPOINTS}/{name}")
        remove_folders(checkpoints / name, folder)
        folder.mkdir(parents=True)
        try:
            self.folder.download(f"{CHECKPOINTS}/{name}/{COMMITTED}", folder / COMMITTED)
            for file in read_marker(folder, url) if files is None else files:
                self.folder.download(f"{CHECKPOINTS}/{name}/{file}", folder / file)
        except FileNotFoundError as error:
            raise ValueError(
                f"{url} is damaged, a file is missing: {error}; restore it, or give "
                "--checkpoint.skip_damaged true to go back to the one before"
            ) from error
        if files is None:  # a checkpoint of this disk from now on
            for each in [*sorted(folder.iterdir()), folder]:
                make_durable(each)
        return folder.rename(checkpoints / name)

    def remove_checkpoints(self, names: Iterable[str]) -> None:
        """Deletes checkpoints, the marker of each first."""
        for name in names:
            folder = self.folder / f"{CHECKPOINTS}/{name}"
            folder.remove([COMMITTED])
            folder.remove(folder.list())

    def remove_old(self, keep: int) -> None:
        """Deletes all but the newest `keep` (0 keeps all) and uploads that never ended."""
        finished, unfinished = self.list_checkpoints()
        self.remove_checkpoints([*unfinished, *(finished[:-keep] if keep else [])])

    def disown(self, name: str) -> None:
        """Takes a damaged checkpoint's marker away, so that it does not count any more."""
        (self.folder / f"{CHECKPOINTS}/{name}").remove([COMMITTED])

    @contextlib.contextmanager
    def opened(self, name: str, files: Sequence[str]) -> Iterator[tuple[RunFolder, Path]]:
        """The folders of the run and of a checkpoint; from a URL what these files take, for now."""
        if self.folder.is_local:
            run = RunFolder(self.folder.local_path())
            yield run, run.checkpoints / name
            return
        with scratch_folder(self.url) as folder:
            run = RunFolder(folder)
            self.fetch_files(RUN_FILES, run.path)
            fetched = self.fetch_checkpoint(name, run.checkpoints, files)
            try:
                yield run, fetched
            except ValueError as error:
                raise ValueError(str(error).replace(str(folder), self.url)) from error
