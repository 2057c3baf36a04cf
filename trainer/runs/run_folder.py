"""The folder of a run: its resolved settings (config.yaml), launches and datasets (run.json)."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import yaml

from pipeline.shards.growing import UNKNOWN_HASH
from pipeline.storage.hub import revision_of
from pipeline.storage.local import replace_file
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
VOCABULARY_HASHES = {"vocab.txt": "vocab_sha256", "tokenizer.json": "tokenizer_sha256"}
"""Key of the sha256 of each vocabulary file in what run.json says of a dataset."""
_UNWRITTEN = (*OF_PHASES, "storage_options")
"""Settings that config.yaml does not hold: phases say the first, the last may hold secrets."""
RUN_KEYS = ("id", "model", "launches", "datasets")
FACTS_TYPES: dict[str, Any] = {
    "model": {},
    "launches": [{"hardware": {"machine": str, "gpus": [str]}, "software": {}}],
    "datasets": [{}],
}
"""Types in run.json, as `wrong_types` takes them."""
DATASET_KEYS = (
    "name", "url", "weight", "root_hash", "settings_hash", "lower_case",
    *VOCABULARY_HASHES.values(),
)  # fmt: skip
REMEDY = (
    "restore it, from --checkpoint.url if the run has one, or give another --output for a new run"
)
PRETRAINING = Continuable(
    kind="a run",
    marker=RUN_FACTS,
    # The data and what was skipped are checked by content, by run.json and the stream's state.
    free=(
        "data", "output", "validation", "checkpoint", "safety", "zero_stage", "deepspeed", "skip",
        "micro_tokens", "follow", "follow_limit_minutes", "cache_dir", "cache_bytes", "wandb",
        "peak_tflops", "activation_checkpointing", "compile",
    ),
)  # fmt: skip
_SCHEDULE = {"phases", "epochs"}
"""Settings that a run which goes on from another may have otherwise."""
BRANCHING = replace(
    PRETRAINING,
    free=(*PRETRAINING.free, "phases", "epochs", "budget_hours", "init_from", "continue_from"),
    advice=": --continue_from changes the schedule alone",
)


class RunFolder:
    """Paths inside a run's folder.

    `newest` names the checkpoint that was committed last. `anomalies` has a row for each step whose
    gradient was not used, and `stacks` what a watchdog wrote about a job that hung. `downloads` is
    used on a node that does not see the disk of rank 0: it has the checkpoint that the node began
    with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.facts, self.lock = path / CONFIG, path / RUN_FACTS, path / LOCK
        self.checkpoints, self.downloads = path / "checkpoints", path / "downloads"
        self.metrics, self.anomalies = path / "metrics.jsonl", path / "anomalies.jsonl"
        self.stacks, self.newest = path / "stacks", path / NEWEST

    @property
    def is_foreign(self) -> bool:
        """Whether something that is not a run is there."""
        return PRETRAINING.is_foreign(self.path)

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
        return parse_yaml_object(self.config.read_bytes(), str(self.config), REMEDY)

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
                f"{path} is not what the run was trained with: its sha256 is {found}, {RUN_FACTS}"
                f" says {expected}; copy it from the dataset again"
            )
        return data


def parse_facts(data: bytes, where: str) -> dict[str, Any]:
    """What run.json holds; a ValueError where it is damaged, or of an earlier version."""
    facts = parse_object(data, where, REMEDY)
    for key, types in FACTS_TYPES.items():
        for wrong in wrong_types(facts[key], types, key) if key in facts else ():
            raise ValueError(f"{where} is damaged: {wrong}; {REMEDY}")
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


_held: list[IO[bytes]] = []  # kept open: the system lets go when the process ends, however it does


def lock_run(run: RunFolder) -> None:
    """Waits until no other job trains in the folder, and keeps it until this process ends."""
    if not run.is_foreign:  # else `prepare_run` refuses it
        _held.append(lock_folder(run.path))


def prepare_run(
    settings: PretrainSettings,
    mixture: Mixture,
    model: BertConfig,
    world_size: int,
    weights: str | None = None,
    trunk: Mapping[str, Any] | None = None,
) -> None:
    """Makes the run's folder, or checks that the one there may be continued. Rank 0 only.

    A new run begins with the `weights` in a folder, which is where init_from was found, or at a
    checkpoint of another run, with what `trunk` says of it.

    Raises:
        FileExistsError: The folder holds something that is not a run.
        ValueError: Its run has other settings or another dataset, or is damaged; or a dataset's
            vocabulary is not the one of its manifest.
    """
    run = RunFolder(Path(settings.output))
    PRETRAINING.refuse_foreign(run.path)
    datasets = [dataset_facts(each) for each in mixture]
    vocabularies = [
        {name: each.dataset.read_file(name) for name in VOCABULARY_HASHES} for each in mixture
    ]
    model_facts = asdict(model)
    facts: dict[str, Any] = {"id": secrets.token_hex(8), "model": model_facts, "launches": []}
    if run.facts.is_file():
        facts = run.read_facts()
        _check_unchanged(run, settings, datasets)
    elif weights is not None:
        facts["base_model"] = base_model_facts(str(settings.init_from), weights)
        facts |= {"init_from_revision": known} if (known := revision_of(weights)) else {}
    facts |= trunk or {}
    facts["masking"] = settings.masking
    facts["datasets"] = datasets  # a followed build may have ended, which gives its root hash
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    facts["launches"].append(launch_facts(world_size))
    # First, as it says that this folder is a run.
    replace_file(run.facts, to_json(hide_in(facts)))
    for name, data in vocabularies[0].items():
        replace_file(run.path / name, data)
    replace_file(run.config, to_yaml(settings).encode())


def to_yaml(settings: PretrainSettings) -> str:
    """The settings as a file that `--config` reads."""
    fields = {name: each for name, each in asdict(settings).items() if name not in _UNWRITTEN}
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
        **WordRule.from_content(manifest.settings).content(),
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
                place = f"{key.replace('_', ' ')} of data {was['name']} ({was['url']})"
                before, after = (str(side[key])[:16] for side in (was, now))
                found.append(f"{place} was {before} and is now {after}")
    return found


def check_trunk(run: RunFolder, settings: PretrainSettings, mixture: Mixture) -> None:
    """Holds a run that goes on from another's checkpoint to all but the other's schedule."""
    _check_unchanged(run, settings, [dataset_facts(each) for each in mixture], BRANCHING)


def masking_of(run: RunFolder) -> str:
    """Returns the masking of a run. If its share moves, the number of steps is included."""
    config = run.read_config()
    masking = str(config["masking"])
    is_open = "-" in masking and "@" not in masking
    return f"{masking}@{sum(each['steps'] for each in config['phases'])}" if is_open else masking


def follow_masking(settings: PretrainSettings, of_trunk: str | None) -> PretrainSettings:
    """Returns the settings of a run that continues another, with that run's mask shares.

    A share that moves "along the run" would jump otherwise, because the two runs have different
    numbers of steps. Settings that give the number of steps are not changed.

    Args:
        settings: The settings of the run that continues.
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
    """Compares a run's settings and datasets with those that it was begun with.

    Raises:
        ValueError: Some differ that may not change.
    """
    new = yaml.safe_load(to_yaml(settings))
    # A first launch may have been killed between run.json and config.yaml: nothing was trained yet.
    was_killed_at_once = not run.config.exists() and not any(run.checkpoints.glob("step-*"))
    old = new if was_killed_at_once else complete_sections(run.read_config(), settings)
    changed = _changed_datasets(run.read_facts()["datasets"], datasets)
    others = {key for key in {*old, *new} if old.get(key) != new.get(key)} - {*rule.free}
    if rule is BRANCHING and "masking" in others:
        old = {**old, "masking": masking_of(run)}
    if others and others <= _SCHEDULE and not changed:
        cure = f"a new run in another --output goes on from it with --continue_from {run.path}"
        rule = replace(rule, advice=f", or {cure}")
    rule.check_settings(str(run.path), old, new, changed)
