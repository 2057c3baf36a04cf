"""Writes and reads the folder of a run, and checks whether the run may be continued.

config.yaml has the settings of the run. run.json has its model, launches and datasets.
"""

import hashlib
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import yaml

from pipeline.shards.document_list import (
    format_document_list,
    hash_documents,
    parse_document_list,
)
from pipeline.shards.growing import UNKNOWN_HASH
from pipeline.shards.instance_kind import INSTANCES, SEGMENT_PAIRS
from pipeline.storage.folder import parse_storage_options
from pipeline.storage.hub import revision_of
from pipeline.storage.local import remove_empty_folders, replace_file
from pipeline.storage.secret_values import hide_in
from tokenizer.word_rule import WordRule
from trainer.model.config import BertConfig
from trainer.runs.continuing import LOCK, Continuable, complete_sections, lock_folder
from trainer.runs.json_files import parse_object, parse_yaml_object, to_json, wrong_types
from trainer.runs.launch import launch_facts
from trainer.runs.training_facts import base_model_facts, source_licences
from trainer.settings import OF_PHASES, PretrainSettings
from trainer.stream.order.source import Mixture, WeightedDataset

CONFIG = "config.yaml"
RUN_FACTS = "run.json"
NEWEST = "newest.json"
LEFT_OUT = "left_out.txt"
"""The list of documents that the run leaves out. Only runs with `leave_out` have this file."""
VOCABULARY_HASHES = {"vocab.txt": "vocab_sha256", "tokenizer.json": "tokenizer_sha256"}
"""For each vocabulary file, the key under which run.json has its sha256 for a dataset."""
_UNWRITTEN = (*OF_PHASES, "storage_options")
"""Settings that are not written to config.yaml.

Those of `OF_PHASES` are part of the phases, and storage_options may contain secrets.
"""
RUN_KEYS = ("id", "model", "launches", "datasets")
"""The keys that run.json must have."""
FACTS_TYPES: dict[str, Any] = {
    "model": {},
    "launches": [{"hardware": {"machine": str, "gpus": [str]}, "software": {}}],
    "datasets": [{}],
}
"""The types of values in run.json, as `wrong_types` takes them."""
DATASET_KEYS = (
    "name", "url", "weight", "root_hash", "settings_hash", "lower_case",
    *VOCABULARY_HASHES.values(),
)  # fmt: skip
"""The keys that run.json must have for each dataset."""
REMEDY = (
    "restore it, from --checkpoint.url if the run has one, or give another --output for a new run"
)
PRETRAINING = Continuable(
    kind="a run",
    marker=RUN_FACTS,
    # `data`, `skip` and `leave_out` may change because their content is compared: that of data with
    # run.json, that of the others with the state of the stream.
    free=(
        "data", "output", "validation", "checkpoint", "safety", "zero_stage", "deepspeed", "skip",
        "leave_out", "micro_tokens", "follow", "follow_limit_minutes", "cache_dir", "cache_bytes",
        "wandb", "peak_tflops", "activation_checkpointing", "compile",
    ),
    early=(LEFT_OUT,),
)  # fmt: skip
_SCHEDULE = {"phases", "epochs"}
"""The schedule. A run cannot change it, but a run that branches off with continue_from can."""
BRANCHING = replace(
    PRETRAINING,
    free=(*PRETRAINING.free, "phases", "epochs", "budget_hours", "init_from", "continue_from"),
    advice=": --continue_from changes the schedule alone",
)


class RunFolder:
    """The paths of the files in a run's folder.

    Attributes:
        path: The folder.
        config: config.yaml, the settings of the run.
        facts: run.json, the facts of the run.
        lock: The file that the job working in the folder holds locked.
        checkpoints: The folder of the checkpoints.
        downloads: A folder on a node that does not see the disk of rank 0. The checkpoint that a
            launch begins with is downloaded into it.
        metrics: metrics.jsonl, with one row for each step and each validation.
        anomalies: anomalies.jsonl, with one row for each step whose gradient was not used.
        stacks: The folder of the stacks that a watchdog wrote about a job that hung.
        newest: newest.json, which names the checkpoint that was committed last.
        left_out: left_out.txt, the list of documents that the run leaves out. It exists only if the
            run leaves any out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG
        self.facts = path / RUN_FACTS
        self.lock = path / LOCK
        self.checkpoints = path / "checkpoints"
        self.downloads = path / "downloads"
        self.metrics = path / "metrics.jsonl"
        self.anomalies = path / "anomalies.jsonl"
        self.stacks = path / "stacks"
        self.newest = path / NEWEST
        self.left_out = path / LEFT_OUT

    @property
    def is_foreign(self) -> bool:
        """Whether the folder holds something that is not a run."""
        return PRETRAINING.is_foreign(self.path)

    def read_facts(self) -> dict[str, Any]:
        """Returns the content of run.json.

        Raises:
            FileNotFoundError: There is no run in the folder.
            ValueError: run.json is damaged, or was written by an earlier version.
        """
        if not self.facts.is_file():
            raise FileNotFoundError(
                f"{self.path} holds no {RUN_FACTS}; give the --output of a pretrain command"
            )
        return parse_facts(self.facts.read_bytes(), str(self.facts))

    def read_config(self) -> dict[str, Any]:
        """Returns the content of config.yaml as plain values.

        Raises:
            FileNotFoundError: The file is missing.
            ValueError: The file is damaged.
        """
        if not self.config.is_file():
            raise FileNotFoundError(f"{self.config} is missing; {REMEDY}")
        return parse_yaml_object(self.config.read_bytes(), str(self.config), REMEDY)

    def read_left_out(self) -> tuple[int, ...]:
        """Returns the documents that the run leaves out, in the order of its list.

        Returns:
            The first 64 bits of the id of each document. Empty if the run leaves none out, or if
            there is no run in the folder.

        Raises:
            FileNotFoundError: The list is missing.
            ValueError: The list is not the one that run.json describes.
        """
        facts = self.read_facts() if self.facts.is_file() else {}
        if "left_out" not in facts:
            return ()
        if not self.left_out.is_file():
            raise FileNotFoundError(f"{self.left_out} is missing; {REMEDY}")
        documents = parse_document_list(self.left_out.read_bytes(), str(self.left_out))
        described = describe_left_out(documents)
        if described != facts["left_out"]:
            raise ValueError(
                f"{self.left_out} is not the list of this run: found {described}, {RUN_FACTS} says"
                f" {facts['left_out']}; {REMEDY}"
            )
        return documents

    def read_vocabulary(self, name: str) -> bytes:
        """Returns the content of vocab.txt or tokenizer.json, which were copied from the dataset.

        Raises:
            FileNotFoundError: The file is missing, or there is no run.
            ValueError: The file is not the one that the run was trained with.
        """
        path = self.path / name
        expected = self.read_facts()["datasets"][0][VOCABULARY_HASHES[name]]
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing; copy it from the dataset that the run was trained on"
            )
        data = path.read_bytes()
        actual = hashlib.sha256(data).hexdigest()
        if actual != expected:
            raise ValueError(
                f"{path} is not what the run was trained with: its sha256 is {actual}, {RUN_FACTS}"
                f" says {expected}; copy it from the dataset again"
            )
        return data


def describe_left_out(documents: Sequence[int]) -> dict[str, Any]:
    """Returns the entry of run.json about the documents that the run leaves out.

    Args:
        documents: The first 64 bits of the documents' ids.
    """
    return {"documents": len(documents), "hash": hash_documents(documents)}


def parse_facts(data: bytes, where: str) -> dict[str, Any]:
    """Returns the content of a run.json.

    Args:
        data: The bytes of the file.
        where: The file, for messages.

    Raises:
        ValueError: The file is damaged, or was written by an earlier version.
    """
    facts = parse_object(data, where, REMEDY)
    for key, types in FACTS_TYPES.items():
        wrong_type = next(wrong_types(facts[key], types, key), None) if key in facts else None
        if wrong_type:
            raise ValueError(f"{where} is damaged: {wrong_type}; {REMEDY}")
    lacking = [key for key in RUN_KEYS if key not in facts]
    lacking += [
        f"{key} of a dataset"
        for key in DATASET_KEYS
        for dataset in facts.get("datasets", ())
        if key not in dataset
    ]
    if lacking:
        why = f"{lacking[0]}: it is damaged, or of an earlier version"
        raise ValueError(f"{where} lacks {why}; {REMEDY}")
    return facts


_held: list[IO[bytes]] = []
"""The open lock files. The system unlocks them when the process ends, even if it is killed."""


def lock_run(run: RunFolder) -> Path | None:
    """Waits until no other job trains in the folder, and locks it until this process ends.

    A folder that holds something else than a run is not locked, because `prepare_run` refuses it.

    Returns:
        If the folder did not exist and was made, the nearest folder above it that did exist.
        Otherwise None.

    Raises:
        FileExistsError: Another job is still there after a minute, or the folder is a file.
    """
    if run.is_foreign:
        return None
    was_there = run.path.exists()
    existing = next((parent for parent in run.path.parents if parent.exists()), run.path.parent)
    _held.append(lock_folder(run.path))
    return None if was_there else existing


def remove_run(run: RunFolder, existing: Path) -> None:
    """Removes the folder of a run that ended before its first step.

    Args:
        run: The run, whose folder `lock_run` made.
        existing: The result of `lock_run`. Folders between it and the run's are removed if they are
            empty.
    """
    shutil.rmtree(run.path, ignore_errors=True)
    remove_empty_folders(run.path.parent, existing)


def prepare_run(
    settings: PretrainSettings,
    mixture: Mixture,
    model: BertConfig,
    world_size: int,
    weights: str | None = None,
    trunk: Mapping[str, Any] | None = None,
    left_out: Sequence[int] = (),
) -> None:
    """Makes the run's folder, or checks that the run there may be continued. Rank 0 calls it.

    Args:
        settings: The settings of the run.
        mixture: Its datasets.
        model: The configuration of its model.
        world_size: The number of ranks of this launch.
        weights: The folder where init_from was found, if a new run begins with the weights of a
            model; otherwise None.
        trunk: Facts for run.json about the other run, if a new run begins at a checkpoint of
            another run; otherwise None.
        left_out: The documents that the run leaves out, by the first 64 bits of their ids.

    Raises:
        FileExistsError: The folder holds something that is not a run.
        ValueError: The run there has other settings or other datasets, or is damaged; or a
            dataset's vocabulary does not match its manifest.
    """
    run = RunFolder(Path(settings.output))
    PRETRAINING.refuse_foreign(run.path)
    datasets = [dataset_facts(source) for source in mixture]
    # Reading a vocabulary checks it. So those of all datasets are read, and one is written.
    vocabularies = [
        {name: source.dataset.read_file(name) for name in VOCABULARY_HASHES} for source in mixture
    ]
    model_facts = asdict(model)
    facts: dict[str, Any] = {"id": secrets.token_hex(8), "model": model_facts, "launches": []}
    if run.facts.is_file():
        facts = run.read_facts()
        _check_unchanged(run, settings, datasets)
    elif weights is not None:
        options = parse_storage_options(settings.storage_options)
        facts["base_model"] = base_model_facts(str(settings.init_from), weights, options)
        revision = revision_of(weights)
        if revision:
            facts["init_from_revision"] = revision
    facts |= trunk or {}
    facts["masking"] = settings.masking
    # The datasets are written at every launch, because the root hash of one that is still being
    # built is known only when its build has ended.
    facts["datasets"] = datasets
    if left_out:
        facts["left_out"] = describe_left_out(left_out)
        # The list is there before run.json speaks of it.
        replace_file(run.left_out, format_document_list(left_out))

    facts["launches"].append(launch_facts(world_size))
    # All else is written after run.json, because it marks the folder as that of a run.
    replace_file(run.facts, to_json(hide_in(facts)))
    run.checkpoints.mkdir(exist_ok=True)
    for name, data in vocabularies[0].items():
        replace_file(run.path / name, data)
    replace_file(run.config, to_yaml(settings).encode())


def to_yaml(settings: PretrainSettings) -> str:
    """Returns the settings, without secrets, as a YAML file that `--config` can read."""
    fields = {name: value for name, value in asdict(settings).items() if name not in _UNWRITTEN}
    return str(yaml.safe_dump(hide_in(fields), sort_keys=False))


def dataset_facts(source: WeightedDataset) -> dict[str, Any]:
    """Returns the facts of a dataset for run.json.

    The root hash of a dataset that is still being built is None.
    """
    manifest = source.dataset.manifest
    return {
        "name": source.name,
        "url": source.dataset.url,
        "weight": source.weight,
        "root_hash": None if manifest.root_hash == UNKNOWN_HASH else manifest.root_hash,
        "settings_hash": manifest.settings_hash,
        "instances": manifest.settings.get(INSTANCES, SEGMENT_PAIRS),
        **WordRule.from_content(manifest.settings).content(),
        "vocab_sha256": manifest.vocab_sha256,
        "tokenizer_sha256": manifest.tokenizer_sha256,
        "licences": source_licences(source.dataset),
    }


def _changed_datasets(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[str]:
    """Returns what differs between the datasets of two launches, in words for a message.

    URLs and names may differ. A root hash that is not known yet counts as equal to any other.

    Args:
        old: The facts of the datasets that the run was begun with, from run.json.
        new: The facts of the datasets to continue with.
    """
    if len(old) != len(new):
        old_names = ", ".join(dataset["name"] for dataset in old)
        new_names = ", ".join(dataset["name"] for dataset in new)
        return [f"data was {len(old)} dataset(s), {old_names}, and is now {len(new)}, {new_names}"]
    changes = []
    for before, now in zip(old, new, strict=True):
        for key in ("weight", "root_hash", "settings_hash"):
            if before[key] != now[key] and None not in (before[key], now[key]):
                place = f"{key.replace('_', ' ')} of data {before['name']} ({before['url']})"
                old_value = str(before[key])[:16]
                new_value = str(now[key])[:16]
                changes.append(f"{place} was {old_value} and is now {new_value}")
    return changes


def refuse_changed_datasets(
    where: str, old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]
) -> None:
    """Raises a ValueError if datasets are not those that a run was trained on.

    Args:
        where: The run, for the message.
        old: The facts of the datasets in its run.json.
        new: The facts of the datasets that were opened for it.
    """
    changes = _changed_datasets(old, new)
    if changes:
        raise ValueError(
            f"{where} was trained on other datasets: {'; '.join(changes)}; give --data where its"
            " datasets are now"
        )


def check_trunk(run: RunFolder, settings: PretrainSettings, mixture: Mixture) -> None:
    """Refuses a new run that does not fit the run at whose checkpoint it begins.

    Args:
        run: The run at whose checkpoint the new run begins.
        settings: The settings of the new run. They may differ from those of `run` in the schedule,
            and in settings that do not affect what is computed.
        mixture: The datasets of the new run.

    Raises:
        ValueError: Other settings differ, or the datasets do.
    """
    datasets = [dataset_facts(source) for source in mixture]
    _check_unchanged(run, settings, datasets, BRANCHING)


def masking_of(run: RunFolder) -> str:
    """Returns the setting `masking` of a run, with the steps over which its mask share moves.

    If the setting names a first and a last share but no number of steps, such as "0.3-0.15", the
    steps of all phases are added: "0.3-0.15@1000000".
    """
    config = run.read_config()
    masking = str(config["masking"])
    if "-" in masking and "@" not in masking:
        num_steps = sum(phase["steps"] for phase in config["phases"])
        return f"{masking}@{num_steps}"
    return masking


def follow_masking(settings: PretrainSettings, of_trunk: str | None) -> PretrainSettings:
    """Returns the settings of a run that branches off another run, with that run's mask shares.

    A mask share that moves from a first to a last value, as with "0.3-0.15", moves over all steps
    of a run. The new run has another number of steps, so its mask share would jump at the
    checkpoint at which it begins. Therefore the new run takes over the other run's masking, which
    names the number of steps. It takes over nothing if its own masking names other shares or a
    number of steps.

    Args:
        settings: The settings of the new run.
        of_trunk: The result of `masking_of` for the other run; None if there is no other run.
    """
    if of_trunk is None or of_trunk.partition("@")[0] != settings.masking:
        return settings
    return replace(settings, masking=of_trunk)


def _check_unchanged(
    run: RunFolder,
    settings: PretrainSettings,
    datasets: Sequence[dict[str, Any]],
    rule: Continuable = PRETRAINING,
) -> None:
    """Refuses settings and datasets that differ from those that a run was begun with.

    Args:
        run: The run.
        settings: The settings to continue with.
        datasets: The facts of the datasets to continue with, from `dataset_facts`.
        rule: Says which settings may change.

    Raises:
        ValueError: A setting has changed that may not, or the datasets have. If only the schedule
            has changed, the message proposes a new run with continue_from.
    """
    new = yaml.safe_load(to_yaml(settings))
    # If the first launch was killed between writing run.json and config.yaml, nothing was trained.
    was_killed_at_once = not run.config.exists() and not any(run.checkpoints.glob("step-*"))
    old = new if was_killed_at_once else complete_sections(run.read_config(), settings)
    changed = _changed_datasets(run.read_facts()["datasets"], datasets)
    names = {name for name in {*old, *new} if old.get(name) != new.get(name)} - {*rule.free}
    if rule is BRANCHING and "masking" in names:
        old = {**old, "masking": masking_of(run)}
    if names and names <= _SCHEDULE and not changed:
        cure = f"a new run in another --output goes on from it with --continue_from {run.path}"
        rule = replace(rule, advice=f", or {cure}")
    rule.check_settings(str(run.path), old, new, changed)
