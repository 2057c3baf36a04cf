"""The choice of the checkpoint that a run goes on from: the newest whole one, here or at a URL.

Rank 0 chooses and downloads. Nodes that do not see its folder download for themselves, which needs
a URL, and to a place of its own: it is no checkpoint of theirs when one of them is first next time.
"""

import json
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

from pipeline.storage.local import replace_file
from trainer.checkpoints.read import COMMITTED, find_checkpoints, read_marker, step_of, verify_file
from trainer.checkpoints.store import METRICS, RUN_FILES, CheckpointStore
from trainer.checkpoints.write import remove_folders
from trainer.process.ranks import Ranks, together
from trainer.runs.run_folder import PRETRAINING, RUN_FACTS, RunFolder


def restore_run(run: RunFolder, store: CheckpointStore) -> None:
    """Brings back what a wiped node needs before settings can be compared. Rank 0 only."""
    facts = store.read_facts()
    if facts is None or run.is_foreign:
        return
    if run.facts.exists() and (own := run.read_facts().get("id")) != facts.get("id"):
        raise ValueError(
            f"{store.locate(RUN_FACTS)} is of another run ({facts.get('id')}) than {run.path} ({own}); give every run "
            "a --checkpoint.url of its own"
        )
    store.fetch_files([name for name in RUN_FILES if not (run.path / name).exists()], run.path)


def copy_run(run: RunFolder, store: CheckpointStore | None, ranks: Ranks) -> None:
    """Gives nodes that do not see rank 0's folder what the run is; any may then be first next time.

    All ranks call it. Such nodes need a URL.
    """
    is_shared = _see_same_folder(run, ranks)
    with together(ranks):
        if not is_shared and store is None:
            raise ValueError(
                f"{platform.node()} does not see the run's folder {run.path} of rank 0; give an --output that all "
                "nodes see, or a --checkpoint.url"
            )
    if all(ranks.gather(is_shared)):
        return
    names = RUN_FILES if ranks.rank == 0 else ()
    files = ranks.from_first({name: (run.path / name).read_bytes() for name in names})
    with together(ranks):
        if not is_shared and _is_first_of_node():
            _refuse_other_run(run, json.loads(files[RUN_FACTS])["id"])
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            for name, data in files.items():
                replace_file(run.path / name, data)


def choose_checkpoint(
    run: RunFolder,
    store: CheckpointStore | None,
    ranks: Ranks,
    skip_damaged: bool,
    say: Callable[[str], None],
    before: int | None = None,
) -> Path | None:
    """The checkpoint to load, on this node's disk; None where there is none. Called by all ranks.

    With `skip_damaged` it is the newest whole one, with `before` one of an earlier step.
    """
    is_shared = _see_same_folder(run, ranks)
    everywhere = all(ranks.gather(is_shared))
    name: str | None = None
    with together(ranks):
        if ranks.rank == 0:
            local, remote = _list_checkpoints(run, store, say)
            found = local | remote if everywhere else remote
            names = [each for each in found if before is None or step_of(each) < before]
            names.sort(reverse=True)
            name = _choose(run, store, names, local, skip_damaged, say)
    name = ranks.from_first(name)
    if name is None:
        return None
    place = run.checkpoints if is_shared else run.downloads
    with together(ranks):
        if not is_shared and store is not None and _is_first_of_node():
            shutil.rmtree(place, ignore_errors=True)
            store.fetch_checkpoint(name, place)
    return place / name


def discard_from(run: RunFolder, store: CheckpointStore | None, step: int) -> None:
    """Deletes checkpoints of this step and later ones, on rank 0 only: the run goes back."""
    finished, _ = find_checkpoints(run.checkpoints)
    remove_folders(*(path for path in finished if step_of(path.name) >= step))
    if store is not None:
        finished_there, _ = store.list_checkpoints()
        store.remove_checkpoints(name for name in finished_there if step_of(name) >= step)


def _choose(
    run: RunFolder,
    store: CheckpointStore | None,
    names: list[str],
    local: set[str],
    skip_damaged: bool,
    say: Callable[[str], None],
) -> str | None:
    """The first of the checkpoints that is whole, once it lies in rank 0's folder."""
    for name in names:
        try:
            if store is not None and name not in local:
                # Rows first: where the checkpoint is, they are.
                store.fetch_files([METRICS], run.path)
                store.fetch_checkpoint(name, run.checkpoints)
            for file in read_marker(run.checkpoints / name) if skip_damaged else ():
                verify_file(run.checkpoints / name, file)
        except ValueError as damage:
            if not skip_damaged or isinstance(damage, OSError):  # the store did not answer
                raise
            say(f"skipped: {damage}")
            (run.checkpoints / name / COMMITTED).unlink(missing_ok=True)
            if store is not None:
                store.disown(name)
        else:
            return name
    return None


def _list_checkpoints(
    run: RunFolder, store: CheckpointStore | None, say: Callable[[str], None]
) -> tuple[set[str], set[str]]:
    """Names of committed checkpoints in the folder and at the URL."""
    finished, unfinished = find_checkpoints(run.checkpoints)
    for path in unfinished:
        say(f"{path} was never finished and is not used")
    if store is None:
        return {path.name for path in finished}, set()
    remote, torn = store.list_checkpoints()
    for name in torn:
        say(f"{store.locate(f'checkpoints/{name}')} was never uploaded whole and is not used")
    return {path.name for path in finished}, set(remote)


def _is_first_of_node() -> bool:
    return int(os.environ["LOCAL_RANK"]) == 0


def _refuse_other_run(run: RunFolder, expected: str) -> None:
    where = f"{run.path} on {platform.node()}, which does not see that of rank 0,"
    PRETRAINING.refuse_foreign(run.path, where)
    if run.facts.is_file() and (found := run.read_facts().get("id")) != expected:
        both = f"another run ({found}) than rank 0's ({expected})"
        raise ValueError(f"{where} holds {both}; remove it")


def _see_same_folder(run: RunFolder, ranks: Ranks) -> bool:
    """Whether this rank sees the lock of rank 0, which names the job."""
    mine = run.lock.read_bytes() if run.lock.is_file() else b""
    return bool(mine == ranks.from_first(mine))
