"""Keeps a copy of a run at a URL: its checkpoints and the other files that a new node needs.

    URL/run.json, config.yaml, vocab.txt, tokenizer.json, metrics.jsonl, anomalies.jsonl
    URL/checkpoints/step-00000600/...    a checkpoint; complete if it has COMMITTED, uploaded last
    URL/checkpoints/newest.json          names the checkpoint that was completed last

An object store seldom loses an object. More often it returns an incomplete listing, or says that an
object does not exist although it does. So if a file seems missing or damaged, the store is asked
again for the file's name.

A committed checkpoint is one that has the file COMMITTED, which marks it as complete.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.storage.faults import DAMAGE_ATTEMPTS, StorageError, reread_damaged
from pipeline.storage.folder import Folder
from pipeline.storage.local import make_durable, replace_file, scratch_folder
from trainer.checkpoints.files import (
    COMMITTED,
    is_checkpoint,
    read_marker,
    remove_folders,
    verify_file,
)
from trainer.runs.json_files import parse_object, to_json
from trainer.runs.run_folder import (
    CONFIG,
    LEFT_OUT,
    NEWEST,
    RUN_FACTS,
    VOCABULARY_HASHES,
    RunFolder,
    parse_facts,
)

CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
ANOMALIES = "anomalies.jsonl"
RUN_FILES = (RUN_FACTS, CONFIG, *VOCABULARY_HASHES)
"""The files, beside checkpoints and metrics, that a node needs to continue the run.

A run that leaves documents out also has `LEFT_OUT`.
"""


def newest_json(checkpoint: str) -> bytes:
    """Returns the content of newest.json, which names the checkpoint that was committed last.

    Args:
        checkpoint: The name of that checkpoint.
    """
    return to_json({"checkpoint": checkpoint})


def parse_newest(data: bytes, where: str) -> str:
    """Returns the name of the checkpoint that newest.json names.

    Args:
        data: The bytes of newest.json.
        where: The path or URL of the file, for messages.

    Raises:
        ValueError: The file is damaged.
    """
    cure = "remove it: it only guards against listings that leave a checkpoint out"
    newest = str(parse_object(data, where, cure).get("checkpoint"))
    if not is_checkpoint(newest):
        raise ValueError(f"{where}: found {newest[:60]!r}, expected a checkpoint; {cure}")
    return newest


class CheckpointStore:
    """The copy of a run at a URL or local path, which must not hold another run.

    Attributes:
        url: The URL or path, without a slash at its end.
        folder: The folder at that URL.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        """Remembers the URL, from which nothing is read yet.

        Args:
            url: The URL or local path.
            storage_options: Options of the fsspec filesystem, such as keys.
        """
        self.url = url.rstrip("/")
        self.folder = Folder(url, storage_options)

    def locate(self, name: str) -> str:
        """Returns the URL of a file, for messages.

        Args:
            name: The path of the file, relative to the URL of the run.
        """
        return self.folder.locate(name)

    def list_checkpoints(self) -> tuple[list[str], list[str]]:
        """Returns the names of committed checkpoints, oldest first, and of unfinished ones.

        The listing of an object store may leave files out. So the name in newest.json is added, and
        each COMMITTED that is not listed is asked for by its name.
        """
        found = (self.folder / CHECKPOINTS).list()
        # The caller may delete the unfinished ones, so names of other files must not be among them.
        names = {name.partition("/")[0] for name in found if is_checkpoint(name.partition("/")[0])}
        newest = self.read_newest() if not self.folder.is_local else None
        listed = {name for name in names if f"{name}/{COMMITTED}" in found}
        left_out = (names | ({newest} if newest else set())) - listed
        finished = listed | {name for name in left_out if self._is_committed(name)}
        return sorted(finished), sorted(names - finished)

    def _is_committed(self, name: str) -> bool:
        """Returns whether the checkpoint of this name has the file COMMITTED."""
        return self._exists(f"{CHECKPOINTS}/{name}/{COMMITTED}")

    def _exists(self, name: str) -> bool:
        """Returns whether a file exists. An object store is asked up to three times.

        Args:
            name: The path of the file, relative to the URL of the run.
        """
        attempts = 1 if self.folder.is_local else DAMAGE_ATTEMPTS
        return any(self.folder.exists(name) for _ in range(attempts))

    def read_newest(self) -> str | None:
        """Returns the checkpoint name in newest.json, or None if there is no such file.

        Raises:
            ValueError: newest.json is damaged.
        """
        name = f"{CHECKPOINTS}/{NEWEST}"

        def read() -> str:
            return parse_newest(self.folder.read(name), self.locate(name))

        try:
            return reread_damaged(read, is_local=self.folder.is_local, is_expected=True)
        except FileNotFoundError:
            return None

    def note_newest(self, checkpoint: str) -> None:
        """Writes newest.json with the name of the checkpoint that was committed last."""
        self.folder.write(f"{CHECKPOINTS}/{NEWEST}", newest_json(checkpoint))

    def forget_newest(self) -> None:
        """Removes newest.json, because no checkpoint is left."""
        self.folder.remove([f"{CHECKPOINTS}/{NEWEST}"])

    def upload(self, folder: Path, checkpoint: str, names: Iterable[str]) -> None:
        """Uploads files of a checkpoint.

        Args:
            folder: The local folder that holds the files.
            checkpoint: The name of the checkpoint.
            names: The names of the files.

        Raises:
            StorageError: A file could not be uploaded.
        """
        for name in names:
            try:
                self.folder.write(f"{CHECKPOINTS}/{checkpoint}/{name}", folder / name)
            except StorageError as error:
                result = (
                    f"the checkpoint {checkpoint} was not uploaded, those before it are untouched"
                )
                raise StorageError(f"{error}; {result}") from error

    def upload_run(self, run: RunFolder) -> None:
        """Uploads the run's settings, vocabulary and facts, and then its anomalies and metrics.

        run.json is uploaded after the settings and the vocabulary, because a URL counts as a run if
        it has a run.json. anomalies.jsonl is empty if the gradients of all steps were used. It is
        read before metrics.jsonl, so that the steps of its rows have rows there.
        """
        if run.left_out.exists():
            self.folder.write(LEFT_OUT, run.left_out.read_bytes())
        for name in reversed(RUN_FILES):
            self.folder.write(name, (run.path / name).read_bytes())
        self.folder.write(ANOMALIES, _whole_rows(run.anomalies))
        if run.metrics.exists():
            self.folder.write(METRICS, _whole_rows(run.metrics))

    def read_facts(self) -> dict[str, Any] | None:
        """Returns the content of run.json, or None if the URL has no run and no checkpoints.

        Raises:
            ValueError: run.json is damaged, or is missing although there are checkpoints.
        """

        def read() -> dict[str, Any]:
            return parse_facts(self.folder.read(RUN_FACTS), self.locate(RUN_FACTS))

        try:
            return reread_damaged(read, is_local=self.folder.is_local, is_expected=True)
        except FileNotFoundError as error:
            names, _ = self.list_checkpoints()
            if names:
                found = f"{self.locate(RUN_FACTS)} is missing beside {names[-1]}"
                cure = "restore it, or give another --checkpoint.url"
                raise ValueError(f"{found}: {cure}") from error
            return None

    def fetch_files(self, names: Sequence[str], folder: Path) -> None:
        """Downloads files of the run to a folder.

        Args:
            names: The paths of the files, relative to the URL of the run.
            folder: The local folder.

        Raises:
            FileNotFoundError: A file was missing at every attempt.
        """
        for name in names:
            read = partial(self.folder.read, name)
            data = reread_damaged(read, is_local=self.folder.is_local, is_expected=True)
            replace_file(folder / name, data)

    def fetch_rows(self, folder: Path) -> None:
        """Downloads the metrics and anomalies of the run, over those in a folder.

        Earlier versions did not upload anomalies. If the run has none at its URL, those in the
        folder stay.

        Args:
            folder: The local folder of the run.

        Raises:
            FileNotFoundError: metrics.jsonl was missing at every attempt.
        """
        if self._exists(ANOMALIES):
            self.fetch_files([ANOMALIES], folder)
        self.fetch_files([METRICS], folder)

    def fetch_run(self, folder: Path) -> None:
        """Downloads the run's files that a folder lacks.

        Args:
            folder: The local folder of the run.

        Raises:
            FileNotFoundError: A file was missing at every attempt.
        """
        names = [name for name in RUN_FILES if not (folder / name).exists()]
        facts = self.read_facts() or {}
        if "left_out" in facts and not (folder / LEFT_OUT).exists():
            names.append(LEFT_OUT)
        self.fetch_files(names, folder)

    def fetch_checkpoint(
        self, name: str, checkpoints: Path, files: Iterable[str] | None = None
    ) -> Path:
        """Downloads a checkpoint, or some of its files, and returns its local folder.

        The files are downloaded to a folder whose name ends in ".tmp", which is renamed when the
        size and the hash of every file have been checked.

        Args:
            name: The name of the checkpoint.
            checkpoints: The local folder of all checkpoints. A checkpoint of that name in it is
                deleted first.
            files: Names of the files to download; None downloads all.

        Raises:
            ValueError: A file was missing or damaged at every attempt.
        """
        folder = checkpoints / f"{name}.tmp"
        url = self.locate(f"{CHECKPOINTS}/{name}")
        remove_folders(checkpoints / name, folder)
        folder.mkdir(parents=True)
        fetched = dict[str, Any]()

        def fetch() -> None:
            self.folder.download(f"{CHECKPOINTS}/{name}/{COMMITTED}", folder / COMMITTED)
            marker = read_marker(folder, url)
            for file in marker if files is None else files:
                if file not in marker or fetched.get(file) != marker[file]:
                    self.folder.download(f"{CHECKPOINTS}/{name}/{file}", folder / file)
                    verify_file(folder, file, url)
                    fetched[file] = marker[file]

        try:
            reread_damaged(fetch, is_local=self.folder.is_local, is_expected=True)
        except FileNotFoundError as error:
            raise ValueError(
                f"{url} is damaged, a file is missing: {error}; restore it, or give "
                "--checkpoint.skip_damaged true to go back to the one before"
            ) from error
        if files is None:  # it is now a local checkpoint and must survive a crash
            for path in [*sorted(folder.iterdir()), folder]:
                make_durable(path)
        return folder.rename(checkpoints / name)

    def remove_checkpoints(self, names: Iterable[str]) -> None:
        """Deletes checkpoints.

        The file COMMITTED of each checkpoint is deleted first. So the checkpoint does not look
        complete if the process is killed before the other files are deleted.

        Args:
            names: The names of the checkpoints.
        """
        for name in names:
            folder = self.folder / f"{CHECKPOINTS}/{name}"
            folder.remove([COMMITTED])
            folder.remove(folder.list())

    def remove_old(self, keep: int) -> None:
        """Deletes old checkpoints and the remains of uploads that did not finish.

        Args:
            keep: The number of committed checkpoints that stay, which are the newest; 0 keeps all.
        """
        finished, unfinished = self.list_checkpoints()
        self.remove_checkpoints([*unfinished, *(finished[:-keep] if keep else [])])

    def disown(self, name: str) -> None:
        """Deletes the COMMITTED of a damaged checkpoint, so that it is not used again.

        Args:
            name: The name of the checkpoint.
        """
        (self.folder / f"{CHECKPOINTS}/{name}").remove([COMMITTED])

    @contextlib.contextmanager
    def opened(self, name: str, files: Sequence[str]) -> Iterator[tuple[RunFolder, Path]]:
        """Yields local folders of the run and of one of its checkpoints, for a `with` block.

        A run on a local disk is used in place. If the run is at a URL, the files of the run and
        some files of the checkpoint are downloaded to a temporary folder, which is deleted after
        the block.

        Args:
            name: The name of the checkpoint.
            files: The names of the checkpoint's files that the block reads.

        Raises:
            ValueError: A file is damaged. In messages of the block's own ValueErrors, the temporary
                folder is replaced by the URL.
        """
        if self.folder.is_local:
            run = RunFolder(self.folder.local_path())
            yield run, run.checkpoints / name
            return
        with scratch_folder(self.url) as folder:
            run = RunFolder(folder)
            self.fetch_run(run.path)
            fetched = self.fetch_checkpoint(name, run.checkpoints, files)
            try:
                yield run, fetched
            except ValueError as error:
                raise ValueError(str(error).replace(str(folder), self.url)) from error


def _whole_rows(path: Path) -> bytes:
    """Returns the lines of a file that training may be writing to, without an unfinished last one.

    The result is empty if there is no such file.
    """
    rows = path.read_bytes() if path.exists() else b""
    return rows[: rows.rfind(b"\n") + 1]
