"""How a run's model came about, for those who get it alone: training, base model, licences."""

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import yaml

from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import named_damage, open_parquet
from pipeline.storage.folder import Folder
from pipeline.storage.hub import is_hub_name

_SOURCES = "sources.parquet"

_PHASE = {"seq_len": "length", "global_batch": "batches of", "steps": "steps", "peak_lr": "rate"}


def training_facts(config: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's settings and run.json say: optimizer, precision, seed, phases, last launch."""
    launches, phases = facts.get("launches") or [{}], config.get("phases") or []
    found = {
        "optimizer": (config.get("optimizer") or {}).get("name"),
        "precision": config.get("precision"),
        "seed": config.get("seed"),
        "masking": _describe_masking(config),
        "phases": [_describe_phase(each) for each in phases],
        **_describe_launch(launches[-1]),
    }
    return {name: value for name, value in found.items() if value not in (None, [], "")}


def base_model_facts(name: str, where: str | None = None) -> dict[str, Any]:
    """What a model of the Hub put into a folder, or a folder, says of itself: licence, training.

    A file that is damaged says nothing here: reading the weights names it.
    """
    folder = Folder(where or name)
    card = _front_matter(_read(folder, "README.md"))
    try:
        config = json.loads(_read(folder, "config.json"))
    except (ValueError, RecursionError):
        config = {}
    own = config.get("beambert", {}) if isinstance(config, dict) else {}
    found = {
        "name": name if is_hub_name(name) else PurePath(name.rstrip("/")).name,
        "licence": card.get("license"),
        "base_model": card.get("base_model"),
        "provenance": own,
    }
    return {key: value for key, value in found.items() if value}


def source_licences(dataset: Dataset) -> list[str]:
    """Licences that the dataset's sources state, sorted."""
    if not dataset.folder.exists(_SOURCES):
        return []
    data = dataset.read_file(_SOURCES)
    remedy = "run the command that built the dataset once more, which writes it anew"
    with named_damage(dataset.folder.locate(_SOURCES), remedy):
        table = open_parquet(pa.BufferReader(data)).read(use_threads=False)
    names = table.column("licence").unique().to_pylist() if "licence" in table.schema.names else []
    return sorted(filter(None, names))


def _read(folder: Folder, name: str) -> bytes:
    return folder.read(name) if folder.exists(name) else b""


def _front_matter(card: bytes) -> dict[str, Any]:
    """The metadata at the head of a model card; empty where there are none."""
    start, _, rest = card.decode(errors="replace").partition("---\n")
    try:
        found = yaml.safe_load(rest.partition("\n---")[0]) if not start.strip() else None
    except (yaml.YAMLError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _describe_phase(phase: Mapping[str, Any]) -> str:
    known = {name: word for name, word in _PHASE.items() if phase.get(name) is not None}
    return ", ".join(f"{word} {phase[name]}" for name, word in known.items())


def _describe_masking(config: Mapping[str, Any]) -> str | None:
    masking = None if config.get("objective") == "left-to-right" else config.get("masking")
    return masking if masking in (None, "static") else f"drawn anew at every reading, {masking}"


def _describe_launch(launch: Mapping[str, Any]) -> dict[str, str]:
    hardware = launch.get("hardware") or {}
    devices = sorted(set(hardware.get("gpus") or [])) or [hardware.get("machine")]
    software = {"Python": launch.get("python"), **(launch.get("software") or {})}
    names = [name for name in ("Python", "torch", "deepspeed") if software.get(name)]
    found = {"software": ", ".join(f"{name} {software[name]}" for name in names)}
    if launch.get("world_size") and all(devices):
        found["hardware"] = f"{launch['world_size']} rank(s) on {' and '.join(devices)}"
    return found
