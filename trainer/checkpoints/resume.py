"""The choice of the checkpoint that a run goes on from: the newest whole one, here or at a URL.

Rank 0 chooses and downloads. Nodes that do not see its folder download to a place of its own, as
it is no checkpoint of theirs when one of them is first next time.
"""

import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.storage.local import replace_file
from trainer.checkpoints.read import (
    COMMITTED,
    find_checkpoints,
    read_marker,
    remove_folders,
    step_of,
    verify_file,
)
from trainer.checkpoints.store import (
    CHECKPOINTS,
    METRICS,
    RUN_FILES,
    CheckpointStore,
    newest_json,
    parse_newest,
)
from trainer.process.ranks import Ranks, together
from trainer.runs.run_folder import NEWEST, PRETRAINING, RUN_FACTS, RunFolder, parse_facts


def restore_run(run: RunFolder, store: CheckpointStore) -> None:
    """Brings back what a wiped node needs before settings can be compared. Rank 0 only."""
    facts = store.read_facts()
    if facts is None or run.is_foreign:
        return
    if run.facts.exists() and (own := run.read_facts().get("id")) != facts.get("id"):
        other = f"found the run {facts.get('id')}, expected {own}, that of --output {run.path}"
        cure = "give every run a --checkpoint.url of its own"
        raise ValueError(f"--checkpoint.url {store.url} is taken: {other}; {cure}")
    store.fetch_files([name for name in RUN_FILES if not (run.path / name).exists()], run.path)


def copy_run(run: RunFolder, store: CheckpointStore | None, ranks: Ranks) -> None:
    """Gives nodes that do not see rank 0's folder what the run is; called by all ranks."""
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
            if run.facts.is_file() and (found := run.read_facts().get("id")) != expected:
                both = f"another run ({found}) than rank 0's ({expected})"
                raise ValueError(f"{where} holds {both}; remove it")
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            for name, data in files.items():
                replace_file(run.path / name, data)


@dataclass(frozen=True)
class RunCheckpoints:
    """A run's checkpoints in its folder and, if it has one, at its URL."""

    run: RunFolder
    store: CheckpointStore | None
    ranks: Ranks
    skip_damaged: bool
    say: Callable[[str], None]

    def choose(self, before: int | None = None) -> Path | None:
        """The newest (whole) one of a step `before`, on this node's disk; all ranks call it."""
        is_shared = _see_same_folder(self.run, self.ranks)
        everywhere = all(self.ranks.gather(is_shared))
        name: str | None = None
        with together(self.ranks):
            if self.ranks.rank == 0:
                local, remote = self._list()
                found = local | remote if everywhere else remote
                names = [each for each in found if before is None or step_of(each) < before]
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
        """Deletes those of this step and later ones, on rank 0 only: the run goes back."""
        finished, _ = find_checkpoints(self.run.checkpoints)
        if earlier := [path.name for path in finished if step_of(path.name) < step]:
            replace_file(self.run.newest, newest_json(earlier[-1]))
        remove_folders(*(path for path in finished if step_of(path.name) >= step))
        if self.store is not None:
            names, _ = self.store.list_checkpoints()
            if earlier := [name for name in names if step_of(name) < step]:
                self.store.note_newest(earlier[-1])
            self.store.remove_checkpoints(name for name in names if step_of(name) >= step)

    def _refuse_lost(self) -> None:
        """Refuses to begin at step 0 if a checkpoint is known to have been committed.

        Raises:
            ValueError: newest.json, here or at the store, names a checkpoint.
        """
        records = dict[str, str]()
        if self.run.newest.is_file():
            where = str(self.run.newest)
            records[where] = parse_newest(self.run.newest.read_bytes(), where)
        if self.store is not None and (newest := self.store.read_newest()):
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
        """The first that is whole, if that is asked for, once it lies in rank 0's folder."""
        for name in names:
            folder = self.run.checkpoints / name
            try:
                if self.store is not None and name not in local:
                    # Rows first: where the checkpoint is, they are.
                    self.store.fetch_files([METRICS], self.run.path)
                    self.store.fetch_checkpoint(name, self.run.checkpoints)
                for file in read_marker(folder) if self.skip_damaged else ():
                    verify_file(folder, file)
            except ValueError as damage:
                if not self.skip_damaged or isinstance(damage, OSError):  # no answer of the store
                    raise
                self.say(f"skipped: {damage}")
                (folder / COMMITTED).unlink(missing_ok=True)
                if self.store is not None:
                    self.store.disown(name)
            else:
                return name
        return None

    def _list(self) -> tuple[set[str], set[str]]:
        """Names of committed ones in the folder and at the URL."""
        finished, unfinished = find_checkpoints(self.run.checkpoints)
        remote, torn = self.store.list_checkpoints() if self.store else ([], [])
        for path in unfinished:
            self.say(f"{path} was never finished and is not used")
        for url in (
            [self.store.locate(f"checkpoints/{each}") for each in torn] if self.store else ()
        ):
            self.say(f"{url} was never uploaded whole and is not used")
        return {path.name for path in finished}, set(remote)


def _is_first_of_node() -> bool:
    return int(os.environ["LOCAL_RANK"]) == 0


def _see_same_folder(run: RunFolder, ranks: Ranks) -> bool:
    """Whether this rank sees the lock of rank 0, which names the job."""
    mine = run.lock.read_bytes() if run.lock.is_file() else b""
    return bool(mine == ranks.from_first(mine))


def split_step(name: str) -> tuple[str, int | None]:
    """RUN@600 as RUN and 600; an @ elsewhere in a URL is part of it."""
    folder, _, step = name.rpartition("@")
    return (folder, int(step)) if folder and step.isdecimal() else (name, None)


def find_run(
    name: str, storage_options: Mapping[str, Any] | None = None
) -> tuple[CheckpointStore, list[str]]:
    """The run of RUN or RUN@STEP, and its checkpoints up to that one, which is the last."""
    url, step = split_step(name)
    store = CheckpointStore(url, storage_options)
    if store.read_facts() is None:
        flag = "--output" if store.folder.is_local else "--checkpoint.url"
        says = f"holds no {RUN_FACTS}; give the {flag} of a pretrain command"
        raise FileNotFoundError(f"{url} {says}")
    found = {step_of(each): each for each in store.list_checkpoints()[0]}
    if not found:
        says = f"no committed checkpoint at {url}; train first, or give another run"
        raise FileNotFoundError(says)
    if step not in (None, *found):
        raise FileNotFoundError(f"{url} has no checkpoint of step {step}; it has {sorted(found)}")
    return store, [found[each] for each in sorted(found) if step is None or each <= step]
