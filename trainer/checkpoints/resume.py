"""Chooses the checkpoint that a run continues from: the newest in the run's folder or at its URL.

Rank 0 chooses the checkpoint, and downloads it to the folder `checkpoints` if it is only at the
URL. A node that does not see the disk of rank 0 downloads the checkpoint as well, but to the folder
`downloads`. The two folders are kept apart because rank 0 may run on that node at the next launch.
It would then take a download in the folder `checkpoints` for a checkpoint that was saved there.
"""

import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.storage.local import replace_file
from trainer.checkpoints.files import (
    COMMITTED,
    find_checkpoints,
    read_marker,
    remove_folders,
    step_of,
    verify_file,
)
from trainer.checkpoints.store import (
    CHECKPOINTS,
    RUN_FILES,
    CheckpointStore,
    newest_json,
    parse_newest,
)
from trainer.process.ranks import Ranks, together
from trainer.runs.run_folder import NEWEST, PRETRAINING, RUN_FACTS, RunFolder, parse_facts


def restore_run(run: RunFolder, store: CheckpointStore) -> None:
    """Downloads the run's files that the output folder lacks, if there is a run at the URL.

    The disk of the node may have been wiped since the last launch. The files are needed before the
    settings of this launch can be compared with the settings of the run. Only rank 0 calls it.

    Args:
        run: The output folder. A folder that holds something other than a run is left alone.
        store: The copy of the run at a URL.

    Raises:
        ValueError: The URL holds another run than the folder, or a file there is damaged.
        OSError: The URL cannot be read.
    """
    facts = store.read_facts()
    if facts is None or run.is_foreign:
        return
    if run.facts.exists():
        run_id = run.read_facts().get("id")
        if run_id != facts.get("id"):
            other = (
                f"found the run {facts.get('id')}, expected {run_id}, that of --output {run.path}"
            )
            cure = "give every run a --checkpoint.url of its own"
            raise ValueError(f"--checkpoint.url {store.url} is taken: {other}; {cure}")
    store.fetch_run(run.path)


def copy_run(run: RunFolder, store: CheckpointStore | None, ranks: Ranks) -> None:
    """Copies the run's files to nodes that do not see the disk of rank 0; every rank calls it.

    Rank 0 sends run.json, config.yaml and the files of the vocabulary over the network.

    Args:
        run: The run's folder, which has the same path on all nodes.
        store: The copy of the run at a URL; None if there is no URL.
        ranks: This process and the others of the run.

    Raises:
        ValueError: A node does not see the disk of rank 0 and there is no URL, or the node's disk
            has another run at that path.
        FileExistsError: The disk of this node has something other than a run at that path; the
            other ranks raise ValueError.
    """
    is_shared = _see_same_folder(run, ranks)
    with together(ranks):
        if not is_shared and store is None:
            raise ValueError(
                f"{platform.node()} does not see the run's folder {run.path} of rank 0; give an "
                "--output that all nodes see, or a --checkpoint.url"
            )
    if all(ranks.gather(is_shared)):
        return
    names = RUN_FILES if ranks.rank == 0 else ()
    files = ranks.from_first({name: (run.path / name).read_bytes() for name in names})
    with together(ranks):
        if not is_shared and _is_first_of_node():
            where = f"{run.path} on {platform.node()}, which does not see that of rank 0,"
            PRETRAINING.refuse_foreign(run.path, where)
            expected = parse_facts(files[RUN_FACTS], f"{RUN_FACTS} of rank 0")["id"]
            run_id = run.read_facts().get("id") if run.facts.is_file() else expected
            if run_id != expected:
                both = f"another run ({run_id}) than rank 0's ({expected})"
                raise ValueError(f"{where} holds {both}; remove it")
            run.path.mkdir(parents=True, exist_ok=True)
            for name, data in files.items():
                replace_file(run.path / name, data)
            # Only now: a folder without run.json that holds this folder is not known as a run's.
            run.checkpoints.mkdir(exist_ok=True)


@dataclass(frozen=True)
class RunCheckpoints:
    """The checkpoints of a run, in its folder and at its URL.

    Attributes:
        run: The run's folder.
        store: The copy of the run at a URL; None if there is no URL.
        ranks: This process and the others of the run.
        skip_damaged: Whether a damaged checkpoint is skipped and the previous one is used.
            Otherwise a damaged checkpoint is an error.
        say: Shows a message to the user.
    """

    run: RunFolder
    store: CheckpointStore | None
    ranks: Ranks
    skip_damaged: bool
    say: Callable[[str], None]

    def choose(self, before: int | None = None) -> Path | None:
        """Returns the newest checkpoint, which is downloaded if necessary; every rank calls it.

        If a node does not see the disk of rank 0, only checkpoints at the URL are considered.

        Args:
            before: Only checkpoints of earlier steps than this are considered; None considers all.

        Returns:
            The checkpoint's folder on a disk that this node sees, or None if there is none.

        Raises:
            ValueError: A checkpoint is damaged and `skip_damaged` is False; or `before` is None and
                no checkpoint is found, although newest.json says that one was saved.
            OSError: A file cannot be read on this rank; the other ranks raise ValueError.
        """
        is_shared = _see_same_folder(self.run, self.ranks)
        everywhere = all(self.ranks.gather(is_shared))
        name: str | None = None
        with together(self.ranks):
            if self.ranks.rank == 0:
                local, remote = self._list()
                usable = local | remote if everywhere else remote
                names = [entry for entry in usable if before is None or step_of(entry) < before]
                if not names and before is None:
                    self._refuse_lost()
                name = self._first_whole(sorted(names, reverse=True), local)
                if names and name is None and before is None:
                    self._forget_newest()
        name = self.ranks.from_first(name)
        if name is None:
            return None
        place = self.run.checkpoints if is_shared else self.run.downloads
        with together(self.ranks):
            if not is_shared and self.store is not None and _is_first_of_node():
                shutil.rmtree(place, ignore_errors=True)
                self.store.fetch_checkpoint(name, place)
        return place / name

    def discard_from(self, step: int) -> None:
        """Deletes the checkpoints of a step and of all later steps. Only rank 0 calls it.

        The run has diverged and goes back to an earlier checkpoint, so the later ones are useless.
        Before the deletion, newest.json is changed to name the newest checkpoint that stays, if
        there is one.

        Args:
            step: The first step whose checkpoint is deleted.
        """
        finished, _ = find_checkpoints(self.run.checkpoints)
        earlier = [path.name for path in finished if step_of(path.name) < step]
        if earlier:
            replace_file(self.run.newest, newest_json(earlier[-1]))
        remove_folders(*(path for path in finished if step_of(path.name) >= step))
        if self.store is not None:
            names, _ = self.store.list_checkpoints()
            earlier = [name for name in names if step_of(name) < step]
            if earlier:
                self.store.note_newest(earlier[-1])
            self.store.remove_checkpoints(name for name in names if step_of(name) >= step)

    def _refuse_lost(self) -> None:
        """Refuses to begin at step 0 if newest.json says that a checkpoint was saved.

        Raises:
            ValueError: There is a newest.json in the run's folder or at its URL.
        """
        records = dict[str, str]()
        if self.run.newest.is_file():
            where = str(self.run.newest)
            records[where] = parse_newest(self.run.newest.read_bytes(), where)
        newest = self.store.read_newest() if self.store is not None else None
        if self.store is not None and newest is not None:
            records[self.store.locate(f"{CHECKPOINTS}/{NEWEST}")] = newest
        if records:
            places = [str(self.run.checkpoints), *([self.store.url] if self.store else [])]
            raise ValueError(
                f"{next(iter(records))} says that {next(iter(records.values()))} was saved, but no"
                f" checkpoint is found in {' or at '.join(places)}: restore it, or remove"
                f" {' and '.join(records)} to begin again at step 0"
            )

    def _forget_newest(self) -> None:
        """Removes newest.json, because all checkpoints were damaged and skipped."""
        self.run.newest.unlink(missing_ok=True)
        if self.store is not None:
            self.store.forget_newest()

    def _first_whole(self, names: list[str], local: set[str]) -> str | None:
        """Returns the first checkpoint that can be used, which is then in rank 0's folder.

        A checkpoint that is only at the URL is downloaded and checked. If `skip_damaged` is True,
        local checkpoints are checked as well. A damaged checkpoint is reported and skipped, and
        its COMMITTED is deleted in both places, so that the checkpoint is not chosen again.

        Args:
            names: Names of checkpoints in the order of preference.
            local: Names of the checkpoints that are complete in rank 0's folder.

        Returns:
            The name of the checkpoint, or None if all are damaged or `names` is empty.

        Raises:
            ValueError: A checkpoint is damaged and `skip_damaged` is False.
            OSError: The URL or the disk cannot be read.
        """
        for name in names:
            folder = self.run.checkpoints / name
            try:
                if self.store is not None and name not in local:
                    # The metrics are downloaded first, so that they are never missing from a folder
                    # that has the checkpoint.
                    self.store.fetch_rows(self.run.path)
                    self.store.fetch_checkpoint(name, self.run.checkpoints)
                for file in read_marker(folder) if self.skip_damaged else ():
                    verify_file(folder, file)
            except ValueError as damage:
                if not self.skip_damaged or isinstance(damage, OSError):  # the store failed
                    raise
                self.say(f"skipped: {damage}")
                (folder / COMMITTED).unlink(missing_ok=True)
                if self.store is not None:
                    self.store.disown(name)
            else:
                return name
        return None

    def _list(self) -> tuple[set[str], set[str]]:
        """Returns the names of the complete checkpoints in the folder, and of those at the URL.

        Checkpoints that are not complete are reported to the user.
        """
        finished, unfinished = find_checkpoints(self.run.checkpoints)
        for path in unfinished:
            self.say(f"{path} was never finished and is not used")
        local = {path.name for path in finished}
        if self.store is None:
            return local, set()
        uploaded, partly_uploaded = self.store.list_checkpoints()
        for name in partly_uploaded:
            url = self.store.locate(f"{CHECKPOINTS}/{name}")
            self.say(f"{url} was never uploaded whole and is not used")
        return local, set(uploaded)


def _is_first_of_node() -> bool:
    """Returns whether this is the first of the processes that the launcher started on this machine.

    The launcher numbers them in the environment variable LOCAL_RANK.
    """
    return int(os.environ["LOCAL_RANK"]) == 0


def _see_same_folder(run: RunFolder, ranks: Ranks) -> bool:
    """Returns whether this rank sees the same run's folder as rank 0; every rank has to call it.

    Each rank compares the lock file at its own path with the file of rank 0. The content of a
    lock file is random, so equal content means that it is the same file.
    """
    content = run.lock.read_bytes() if run.lock.is_file() else b""
    return bool(content == ranks.from_first(content))


def split_step(name: str) -> tuple[str, int | None]:
    """Splits RUN@600 into RUN and 600.

    An @ counts only if nothing but digits follows it. Any other @, such as one in a URL, is part of
    RUN.

    Args:
        name: The path or URL of a run, with or without a step.

    Returns:
        The path or URL, and the step or None.
    """
    folder, _, step = name.rpartition("@")
    return (folder, int(step)) if folder and step.isdecimal() else (name, None)


def find_run(
    name: str, storage_options: Mapping[str, Any] | None = None
) -> tuple[CheckpointStore, list[str]]:
    """Opens a run and lists its complete checkpoints, all of them or those up to a step.

    Args:
        name: RUN or RUN@STEP, where RUN is the path or URL of a run. With @STEP, checkpoints of
            later steps are left out.
        storage_options: Options of the fsspec filesystem, such as keys.

    Returns:
        The run, and the names of checkpoints, oldest first. The last name is the checkpoint of STEP
        or, without STEP, the newest.

    Raises:
        FileNotFoundError: There is no run, no complete checkpoint, or no checkpoint of STEP.
        ValueError: run.json is damaged.
    """
    url, step = split_step(name)
    store = CheckpointStore(url, storage_options)
    if store.read_facts() is None:
        flag = "--output" if store.folder.is_local else "--checkpoint.url"
        says = f"holds no {RUN_FACTS}; give the {flag} of a pretrain command"
        raise FileNotFoundError(f"{url} {says}")
    complete, _ = store.list_checkpoints()
    names = {step_of(checkpoint): checkpoint for checkpoint in complete}
    if not names:
        says = f"no committed checkpoint at {url}; train first, or give another run"
        raise FileNotFoundError(says)
    if step not in (None, *names):
        raise FileNotFoundError(f"{url} has no checkpoint of step {step}; it has {sorted(names)}")
    return store, [names[saved] for saved in sorted(names) if step is None or saved <= step]
