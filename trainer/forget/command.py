"""Runs `python -m trainer forget`: plans, prepares the new run, trains it, and certifies it."""

import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.shards.document_list import format_document_list, hash_documents, read_document_list
from pipeline.storage.folder import Folder, parse_storage_options
from pipeline.storage.local import replace_file
from pipeline.storage.locks import locked_file
from pipeline.storage.terminal import say
from trainer.checkpoints.store import newest_json
from trainer.forget.certificate import CERTIFICATE, describe_limits, write_certificate
from trainer.forget.near_duplicates import describe_near_duplicates, find_near_duplicates
from trainer.forget.plan import (
    ForgettingPlan,
    OldRun,
    open_run_data,
    plan_forgetting,
    read_old_run,
)
from trainer.forget.settings import ForgetSettings
from trainer.pretrain.loop import train
from trainer.process.ranks import Ranks, together
from trainer.runs.continuing import PATIENCE_SECONDS
from trainer.runs.json_files import to_json
from trainer.runs.metrics import MetricsFile
from trainer.runs.run_folder import (
    PRETRAINING,
    VOCABULARY_HASHES,
    RunFolder,
    describe_left_out,
    to_yaml,
)
from trainer.settings import PretrainSettings


@dataclass(frozen=True)
class _Task:
    """The settings of one `forget` command, with the old run and the new run that they name.

    Attributes:
        settings: The settings of the command.
        options: The parsed `settings.storage_options`; None if there are none.
        old: The run that has read the documents. It is not changed.
        new: The folder of the run that is trained without them.
    """

    settings: ForgetSettings
    options: Mapping[str, Any] | None
    old: OldRun
    new: RunFolder

    @property
    def cache_dir(self) -> str | None:
        """The `cache_dir` of the command's settings, or that of the old run if there is none."""
        return self.settings.cache_dir or self.old.settings.cache_dir

    @property
    def is_begun(self) -> bool:
        """Whether an earlier `forget` of the same run and list has made the new run's folder.

        Raises:
            FileExistsError: The path of the new run holds something else. Or this path or the URL
                of the new checkpoints is in the folder of the old run.
        """
        path = self.new.path
        run = self.old.store.folder
        if run.is_local and run.local_path().resolve() in path.resolve().parents:
            raise FileExistsError(
                f"{path} is in the folder of {self.settings.run}, which is never changed; give"
                " another --output"
            )
        url = self.settings.checkpoint_url
        if url is not None and run.contains(Folder(url, self.options)):
            raise FileExistsError(
                f"--checkpoint_url {url} is in the folder of {self.settings.run}, which is never"
                " changed; give another one"
            )
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return False
        PRETRAINING.refuse_foreign(path)
        forgot = self.new.read_facts().get("forgot", {}) if self.new.facts.is_file() else {}
        names = self.old.facts["id"], self.hash_list()
        if (forgot.get("old_run"), forgot.get("list")) != names:
            raise FileExistsError(
                f"{path} exists and is another run; give another --output, or remove it"
            )
        return True

    def hash_list(self) -> str:
        """Returns the hash of the documents that the command's list names."""
        return hash_documents(read_document_list(self.settings.documents, self.options))

    def pretrain_settings(self) -> PretrainSettings:
        """Returns the settings with which the new run is trained.

        They are those of the old run, but for the documents to leave out and the settings that say
        where data, output, checkpoints and the cache are.
        """
        old = self.old.settings
        checkpoint = replace(old.checkpoint, url=self.settings.checkpoint_url)
        return replace(
            old,
            data=self.settings.data or old.data,
            output=self.settings.output,
            leave_out=str(self.new.left_out),
            checkpoint=checkpoint,
            cache_dir=self.cache_dir,
            storage_options=self.settings.storage_options,
        )


def forget(settings: ForgetSettings, _remainder: object = None) -> int:
    """Runs `python -m trainer forget RUN --documents LIST --output RUN2` on this rank.

    Args:
        settings: The settings of the command. With `settings.plan` the plan is printed and nothing
            is trained.
        _remainder: Not used.

    Returns:
        The exit code: 0 if the new run is finished, if only the plan was printed, or if there is
        nothing to do.

    Raises:
        FileExistsError: `settings.output` holds something other than this new run.
        FileNotFoundError: The run, a dataset or the list is missing.
        ValueError: The run, a dataset or the list is not as it should be.
    """
    options = parse_storage_options(settings.storage_options)
    old = read_old_run(settings.run, options)
    task = _Task(settings, options, old, RunFolder(Path(settings.output)))
    is_first = int(os.environ.get("RANK", "0")) == 0
    if settings.plan:
        if is_first:
            _ = task.is_begun  # refuses what is there
            _say_plan(task)
        return 0
    code = train(task.pretrain_settings(), lambda ranks: _prepare(task, ranks))
    if code == 0 and is_first and task.new.facts.is_file():
        _certify(task)
    return code


def _prepare(task: _Task, ranks: Ranks) -> bool:
    """Makes the folder of the new run, unless an earlier command has made it.

    All ranks call this function together. Rank 0 does the work.

    Returns:
        Whether there is a run to train. It is False if the old run is finished and has read none of
        the documents. The result is the same on all ranks.
    """
    is_needed = True
    with together(ranks):
        if ranks.rank == 0:
            if task.is_begun:
                say(f"{task.new.path}: goes on")
            else:
                is_needed = _make_run(task, ranks)
    return bool(ranks.from_first(is_needed))


@dataclass(frozen=True)
class _Planned:
    """A plan of a forgetting.

    Attributes:
        plan: From which checkpoint the run is made again.
        num_near_duplicates: For each dataset, by its name, the number of documents that are nearly
            the same as a document to forget; None if that is not known. It is empty if nobody has
            looked for them.
    """

    plan: ForgettingPlan
    num_near_duplicates: dict[str, int | None]


def _say_plan(task: _Task) -> _Planned:
    """Plans the forgetting, prints the plan and what it does not cover, and returns the plan."""
    old = task.old
    mixture = open_run_data(old, task.settings.data, task.options)
    plan = plan_forgetting(old, mixture, task.settings.documents, task.cache_dir, task.options)
    for line in plan.describe(task.settings.run):
        say(line)
    counts: dict[str, int | None] = {}
    threshold = task.settings.near_duplicates
    if threshold is not None:
        found = find_near_duplicates(mixture, plan.documents, threshold, task.options)
        for line in describe_near_duplicates(found, threshold):
            say(line)
        counts = {name: None if each is None else len(each) for name, each in found.items()}
    for limit in describe_limits(mixture, old.facts, counts):
        say(f"  not covered: {limit}")
    return _Planned(plan, counts)


def _make_run(task: _Task, ranks: Ranks) -> bool:
    """Plans the forgetting, and makes the folder of the new run if the plan needs it.

    Only rank 0 calls this function. A lock file beside the folder keeps other commands with the
    same --output out. If one of them has made the folder in the meantime, the run goes on.

    Args:
        task: The command.
        ranks: The ranks that will train. A line is printed if their number is not the old run's.

    Returns:
        Whether there is a run to train. There is none if the plan has nothing to do.

    Raises:
        FileExistsError: Another command is making the folder, or has made another run there.
    """
    planned = _say_plan(task)
    plan = planned.plan
    if plan.has_nothing_to_do:
        return False
    old = task.old
    launch = old.facts["launches"][-1] if old.facts["launches"] else {}
    world_size = launch.get("world_size", ranks.world_size)
    if world_size != ranks.world_size:
        say(
            f"{task.settings.run} was trained by {world_size} rank(s), these are"
            f" {ranks.world_size}: the new run has the same batches, but not the same bits"
        )
    path = task.new.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked_file(path.with_name(f".{path.name}.lock"), path, PATIENCE_SECONDS):
        if task.is_begun:
            say(f"{path}: goes on")
        else:
            _write_run(task, planned)
    return True


def _write_run(task: _Task, planned: _Planned) -> None:
    """Writes the folder of the new run, with all that training needs from the checkpoint on.

    The folder is made under another name and then renamed, so it appears complete or not at all.
    The caller must hold the lock of the folder.

    Args:
        task: The command.
        planned: The plan.
    """
    old = task.old
    plan = planned.plan
    new = task.new
    unfinished = RunFolder(new.path.with_name(f".{new.path.name}.unfinished"))
    shutil.rmtree(unfinished.path, ignore_errors=True)
    unfinished.checkpoints.mkdir(parents=True)
    _copy_files(old, unfinished, plan)
    facts = {
        **old.facts,
        "id": secrets.token_hex(8),
        "launches": [],
        "left_out": describe_left_out(plan.documents),
        "forgot": _describe(task, planned),
    }
    replace_file(unfinished.left_out, format_document_list(plan.documents))
    replace_file(unfinished.config, to_yaml(task.pretrain_settings()).encode())
    replace_file(unfinished.facts, to_json(facts))
    if new.path.exists():
        new.path.rmdir()
    unfinished.path.rename(new.path)


def _copy_files(old: OldRun, new: RunFolder, plan: ForgettingPlan) -> None:
    """Copies the files of the old run that the new run begins with.

    They are the vocabulary, the checkpoint to go on from, and the rows of the metrics and anomalies
    files up to the step of that checkpoint.

    Args:
        old: The old run.
        new: The unfinished folder of the new run.
        plan: The plan, which names the checkpoint. If it names none, no checkpoint is copied.
    """
    old.store.fetch_files(list(VOCABULARY_HASHES), new.path)
    for rows in (new.metrics, new.anomalies):
        if old.store.folder.exists(rows.name):
            old.store.fetch_files([rows.name], new.path)
            MetricsFile(rows).cut_after(plan.checkpoint_step)
    if plan.checkpoint is not None:
        old.store.fetch_checkpoint(plan.checkpoint, new.checkpoints)
        replace_file(new.newest, newest_json(plan.checkpoint))


def _describe(task: _Task, planned: _Planned) -> dict[str, Any]:
    """Returns the value of "forgot" in the new run's run.json.

    It names the old run and the list of documents, and has the numbers of the plan. By these names
    `_Task.is_begun` recognizes the new run.
    """
    plan = planned.plan
    return {
        "old_run": task.old.facts["id"],
        "list": task.hash_list(),
        "num_documents": plan.num_forgotten,
        "num_instances": plan.num_instances,
        "first_step": plan.first_step,
        "steps_made": plan.steps_made,
        "from_checkpoint": plan.checkpoint,
        "near_duplicates": planned.num_near_duplicates,
    }


def _certify(task: _Task) -> None:
    """Writes the certificate of the finished new run, unless it exists, and prints its path."""
    if (task.new.path / CERTIFICATE).is_file():
        return
    mixture = open_run_data(task.old, task.settings.data, task.options)
    documents = task.new.read_left_out()[len(task.old.left_out) :]
    forgot = task.new.read_facts()["forgot"]
    limits = describe_limits(mixture, task.old.facts, forgot.get("near_duplicates", {}))
    page = write_certificate(task.new, documents, limits)
    say(f"{page}: what was forgotten, and what that does not cover")
