"""The folder of a run: what it was asked to do, and with what.

RUN/config.yaml (resolved settings), run.json (versions, hardware, arguments, dataset),
metrics.jsonl, vocab.txt, tokenizer.json, checkpoints/.
"""

import dataclasses
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.shards.growing import UNKNOWN_HASH
from pipeline.storage.local import replace_file
from pipeline.storage.secret_values import hide_in
from trainer.model.config import BertConfig
from trainer.order.source import Mixture, WeightedDataset
from trainer.runs.continuing import LOCK, Continuable, names_in
from trainer.runs.json_files import parse_object, to_json
from trainer.runs.launch import launch_facts
from trainer.runs.training_facts import base_model_facts, source_licences
from trainer.settings import OF_PHASES, PretrainSettings

CONFIG = "config.yaml"
RUN_FACTS = "run.json"
VOCABULARY_HASHES = {"vocab.txt": "vocab_sha256", "tokenizer.json": "tokenizer_sha256"}
"""Key of the sha256 of each vocabulary file in what run.json says of a dataset."""
RUN_KEYS = ("id", "model", "launches", "datasets")
DATASET_KEYS = (
    "name", "url", "weight", "root_hash", "settings_hash", "lower_case", *VOCABULARY_HASHES.values(),
)  # fmt: skip
REMEDY = (
    "restore it, from --checkpoint.url if the run has one, or give another --output for a new run"
)
PRETRAINING = Continuable(
    kind="a run",
    marker=RUN_FACTS,
    advice="; to train its weights on, export them and give pretrain --init_from",
    # The data and what was skipped are checked by content, in the run's folder and in the stream's
    # state.
    free=(
        "data", "output", "validation", "checkpoint", "safety", "zero_stage", "deepspeed", "micro_tokens", "skip",
        "follow", "follow_limit_minutes", "cache_dir", "cache_bytes", "wandb",
        "peak_tflops", "activation_checkpointing", "compile",
    ),
)  # fmt: skip


class Inside:
    """The path of something inside the folder that an object stands for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Any, _: object = None) -> Path:
        path: Path = folder.path
        return path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Paths inside a run's folder.

    `downloads` has the checkpoint that a node began with which does not see rank 0's, `anomalies` a
    row per step whose gradient was not taken, `stacks` what a watchdog leaves of a job that hung.
    """

    path: Path
    config = Inside(CONFIG)
    facts = Inside(RUN_FACTS)
    metrics = Inside("metrics.jsonl")
    checkpoints = Inside("checkpoints")
    downloads = Inside("downloads")
    anomalies = Inside("anomalies.jsonl")
    stacks = Inside("stacks")
    lock = Inside(LOCK)

    @property
    def is_foreign(self) -> bool:
        """Whether something that is not a run is there."""
        return PRETRAINING.is_foreign(names_in(self.path))

    def read_facts(self) -> dict[str, Any]:
        """run.json; a FileNotFoundError where there is no run, a ValueError if it is damaged."""
        if not self.facts.is_file():
            raise FileNotFoundError(
                f"{self.path} holds no {RUN_FACTS}; give the --output of a pretrain command"
            )
        return parse_facts(self.facts.read_bytes(), str(self.facts))

    def read_config(self) -> dict[str, Any]:
        """config.yaml, as plain values; raises as `read_facts`."""
        if not self.config.is_file():
            raise FileNotFoundError(f"{self.config} is missing; {REMEDY}")
        try:
            config = yaml.safe_load(self.config.read_bytes())
        except (yaml.YAMLError, ValueError) as error:
            raise ValueError(
                f"{self.config} is damaged, it is not YAML: {error}; {REMEDY}"
            ) from error
        if not isinstance(config, dict):
            found = f"{str(config)[:60]!r}, expected settings"
            raise ValueError(f"{self.config} is damaged: it holds {found}; {REMEDY}")  # noqa: TRY004
        return config

    def read_vocabulary(self, name: str) -> bytes:
        """vocab.txt or tokenizer.json, as the dataset had them; raises as `read_facts`."""
        path, expected = self.path / name, self.read_facts()["datasets"][0][VOCABULARY_HASHES[name]]
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing; copy it from the dataset that the run was trained on"
            )
        data = path.read_bytes()
        if (found := hashlib.sha256(data).hexdigest()) != expected:
            raise ValueError(
                f"{path} is not what the run was trained with: its sha256 is {found}, {RUN_FACTS} says {expected}; copy"
                " it from the dataset again"
            )
        return data


def parse_facts(data: bytes, where: str) -> dict[str, Any]:
    """What run.json holds; a ValueError where it is damaged, or of an earlier version."""
    facts = parse_object(data, where, REMEDY)
    lacking = [key for key in RUN_KEYS if key not in facts]
    datasets = facts.get("datasets", ())
    if not lacking and not (
        isinstance(datasets, list) and all(isinstance(each, dict) for each in datasets)
    ):
        raise ValueError(
            f"{where} is damaged: its datasets are {str(datasets)[:60]!r}, expected objects; {REMEDY}"
        )
    lacking += [
        f"{key} of a dataset" for each in datasets for key in DATASET_KEYS if key not in each
    ]
    if lacking:
        raise ValueError(
            f"{where} lacks {lacking[0]}: it is damaged, or of an earlier version; {REMEDY}"
        )
    return facts


def prepare_run(
    settings: PretrainSettings,
    mixture: Mixture,
    model: BertConfig,
    world_size: int,
    init_from_revision: str | None = None,
) -> None:
    """Makes the run's folder, or checks that the one there may be continued. Rank 0 only.

    The revision, of a model that a new run takes from the Hub, stays in run.json.

    Raises:
        FileExistsError: The folder holds something that is not a run.
        ValueError: The folder's run has other settings or another dataset, what the folder says of
            it is damaged, or a dataset's vocabulary is not the one of its manifest.
    """
    run = RunFolder(Path(settings.output))
    PRETRAINING.refuse_foreign(str(run.path), names_in(run.path))
    datasets = [dataset_facts(each) for each in mixture]
    vocabularies = [
        {name: each.dataset.read_file(name) for name in VOCABULARY_HASHES} for each in mixture
    ]
    facts: dict[str, Any] = {
        "id": secrets.token_hex(8),
        "model": dataclasses.asdict(model),
        "launches": [],
    }
    if init_from_revision is not None:
        facts["init_from_revision"] = init_from_revision
    if run.facts.is_file():
        facts = run.read_facts()
        _check_unchanged(run, settings, facts["datasets"], datasets)
    elif settings.init_from is not None:
        facts["base_model"] = base_model_facts(settings.init_from)
    facts["datasets"] = (
        datasets  # a build that was followed may have ended, which gives its root hash
    )
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    facts["launches"].append(launch_facts(world_size))
    # First, as it says that this folder is a run.
    replace_file(run.facts, to_json(hide_in(facts)))
    for name, data in vocabularies[0].items():
        replace_file(run.path / name, data)
    replace_file(run.config, to_yaml(settings).encode())


def to_yaml(settings: PretrainSettings) -> str:
    """The settings as a file that `--config` reads."""
    left_out = (*OF_PHASES, "storage_options")  # the latter may hold secrets
    fields = {
        name: value for name, value in dataclasses.asdict(settings).items() if name not in left_out
    }
    return str(yaml.safe_dump(hide_in(fields), sort_keys=False))


def dataset_facts(source: WeightedDataset) -> dict[str, Any]:
    """What run.json says of a dataset; the root hash of one that is still being built is None."""
    manifest = source.dataset.manifest
    return {
        "name": source.name,
        "url": source.dataset.url,
        "weight": source.weight,
        "root_hash": None if manifest.root_hash == UNKNOWN_HASH else manifest.root_hash,
        "settings_hash": manifest.settings_hash,
        "lower_case": manifest.settings["lower_case"],
        "vocab_sha256": manifest.vocab_sha256,
        "tokenizer_sha256": manifest.tokenizer_sha256,
        "licences": source_licences(source.dataset),
    }


def _changed_datasets(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[str]:
    """What differs between the datasets of two launches; their places and names may."""
    if len(old) != len(new):
        names = [", ".join(each["name"] for each in side) for side in (old, new)]
        return [f"data was {len(old)} dataset(s), {names[0]}, and is now {len(new)}, {names[1]}"]
    found = []
    for was, now in zip(old, new, strict=True):
        for key in ("weight", "root_hash", "settings_hash"):
            if was[key] != now[key] and None not in (was[key], now[key]):
                before, after = (str(side[key])[:16] for side in (was, now))
                found.append(
                    f"{key.replace('_', ' ')} of data {was['name']} ({was['url']}) was {before} and is now {after}"
                )
    return found


def _check_unchanged(
    run: RunFolder,
    settings: PretrainSettings,
    datasets: Sequence[dict[str, Any]],
    now: Sequence[dict[str, Any]],
) -> None:
    new = yaml.safe_load(to_yaml(settings))
    # A first launch may have been killed between run.json and config.yaml; then nothing was trained
    # yet.
    was_killed_at_once = not run.config.exists() and not any(run.checkpoints.glob("step-*"))
    old = new if was_killed_at_once else run.read_config()
    PRETRAINING.check_settings(str(run.path), old, new, _changed_datasets(datasets, now))
