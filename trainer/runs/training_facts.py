"""Collects how the model of a run was made: training, base model, and licences of the data.

The facts go into the exported model, for people who get the model without the run.
"""

import json
import math
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

# The settings of a phase that are described, and the words for them.
_PHASE = {"seq_len": "length", "global_batch": "batches of", "steps": "steps", "peak_lr": "rate"}


def training_facts(config: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how a run was trained, by name, for the card of the model.

    These are "optimizer", "precision", "seed", "masking", "phases" (a text for each phase), and the
    "software" and "hardware" of the last launch. Facts that are not known are left out.

    Args:
        config: The content of the run's config.yaml.
        facts: The content of its run.json.
    """
    launches = facts.get("launches") or [{}]
    phases = config.get("phases") or []
    known_facts = {
        "optimizer": (config.get("optimizer") or {}).get("name"),
        "precision": config.get("precision"),
        "seed": config.get("seed"),
        "masking": _describe_masking(config),
        "phases": [_describe_phase(phase) for phase in phases],
        **_describe_launch(launches[-1]),
    }
    return {name: value for name, value in known_facts.items() if value not in (None, [], "")}


def base_model_facts(
    name: str, where: str | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns facts about the model whose weights a training begins with.

    They are "name"; "licence" and "base_model", from the metadata in its README.md; and
    "provenance", which is the entry "beambert" of its config.json. Facts that these files do not
    state are left out. A damaged file is treated as empty here, because reading the model's weights
    raises an error about it.

    Args:
        name: The folder of the model, or its name on the Hugging Face Hub.
        where: The folder that a model of the Hub was downloaded to; None if `name` is the folder.
        options: Options of the filesystem of a folder at a URL.
    """
    folder = Folder(where or name, options)
    card = _front_matter(_read(folder, "README.md"))
    try:
        config = json.loads(_read(folder, "config.json"))
    except (ValueError, RecursionError):
        config = {}
    facts = {
        "name": name if is_hub_name(name) else PurePath(name.rstrip("/")).name,
        "licence": card.get("license"),
        "base_model": card.get("base_model"),
        "provenance": config.get("beambert", {}) if isinstance(config, dict) else {},
    }
    return {key: value for key, value in facts.items() if value}


def pairs_facts(row: Mapping[str, Any], pairs: str) -> dict[str, Any]:
    """Returns what a run measured on minimal pairs, for the card of the model.

    Args:
        row: A row of metrics.jsonl with the columns that `validation.pairs` adds.
        pairs: The file, folder or glob of the pairs.

    Returns:
        "file", the name of the file; "num_pairs"; "accuracy" and its "standard_error"; and
        "groups", the accuracy of each group. If there are groups, also "mean_accuracy" over the
        groups, and "standard_error_of_mean", which is None for a row of an older version.
    """
    accuracy = row["pairs_accuracy"]
    facts = {
        "file": PurePath(pairs.rstrip("/")).name,
        "num_pairs": row["pairs"],
        "accuracy": accuracy,
        "standard_error": math.sqrt(accuracy * (1 - accuracy) / row["pairs"]),
        "groups": row["pairs_groups"],
    }
    if facts["groups"]:
        facts["mean_accuracy"] = row["pairs_mean_accuracy"]
        facts["standard_error_of_mean"] = row.get("pairs_standard_error_of_mean")
    return facts


def source_licences(dataset: Dataset) -> list[str]:
    """Returns the different licences that the sources of a dataset state, sorted.

    Raises:
        ValueError: The dataset's table of sources is damaged.
    """
    if not dataset.folder.exists(_SOURCES):
        return []
    data = dataset.read_file(_SOURCES)
    remedy = "run the command that built the dataset once more, which writes it anew"
    with named_damage(dataset.folder.locate(_SOURCES), remedy):
        table = open_parquet(pa.BufferReader(data)).read(use_threads=False)
    names = table.column("licence").unique().to_pylist() if "licence" in table.schema.names else []
    return sorted(filter(None, names))


def _read(folder: Folder, name: str) -> bytes:
    """Returns the content of a file, or no bytes if it is not there."""
    return folder.read(name) if folder.exists(name) else b""


def _front_matter(card: bytes) -> dict[str, Any]:
    """Returns the metadata at the beginning of a model card; empty if it has none."""
    before, _, text = card.decode(errors="replace").partition("---\n")
    try:
        metadata = yaml.safe_load(text.partition("\n---")[0]) if not before.strip() else None
    except (yaml.YAMLError, RecursionError):
        metadata = None
    return metadata if isinstance(metadata, dict) else {}


def _describe_phase(phase: Mapping[str, Any]) -> str:
    """Returns a phase in words, such as "length 128, batches of 256, steps 900000, rate 0.0001"."""
    known = {name: word for name, word in _PHASE.items() if phase.get(name) is not None}
    return ", ".join(f"{word} {phase[name]}" for name, word in known.items())


def _describe_masking(config: Mapping[str, Any]) -> str | None:
    """Returns how tokens were masked, in words; None if none were or if it is not known."""
    masking = None if config.get("objective") == "left-to-right" else config.get("masking")
    return masking if masking in (None, "static") else f"drawn anew at every reading, {masking}"


def _describe_launch(launch: Mapping[str, Any]) -> dict[str, str]:
    """Returns the software and the hardware of a launch, in words.

    Args:
        launch: An item of "launches" in run.json.
    """
    hardware = launch.get("hardware") or {}
    devices = sorted(set(hardware.get("gpus") or [])) or [hardware.get("machine")]
    software = {"Python": launch.get("python"), **(launch.get("software") or {})}
    names = [name for name in ("Python", "torch", "deepspeed") if software.get(name)]
    described = {"software": ", ".join(f"{name} {software[name]}" for name in names)}
    if launch.get("world_size") and all(devices):
        described["hardware"] = f"{launch['world_size']} rank(s) on {' and '.join(devices)}"
    return described
