"""What a run's folder says of how its model was trained, for those who get the model alone."""

from collections.abc import Mapping
from typing import Any

_PHASE = {
    "seq_len": "length {}",
    "global_batch": "batches of {}",
    "steps": "{} steps",
    "peak_lr": "peak rate {}",
}


def training_facts(config: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values: optimizer, precision, seed, phases, and hardware and software of the last start.

    Args:
        config: Resolved settings of the run.
        facts: Its run.json.

    What these do not say is left out.
    """
    launches = facts.get("launches") or [{}]
    found = {
        "optimizer": (config.get("optimizer") or {}).get("name"),
        "precision": config.get("precision"),
        "seed": config.get("seed"),
        "phases": [_describe_phase(each) for each in config.get("phases") or []],
        **_describe_launch(launches[-1]),
    }
    return {name: value for name, value in found.items() if value not in (None, [], "")}


def _describe_phase(phase: Mapping[str, Any]) -> str:
    return ", ".join(
        form.format(phase[name]) for name, form in _PHASE.items() if phase.get(name) is not None
    )


def _describe_launch(launch: Mapping[str, Any]) -> dict[str, str]:
    hardware = launch.get("hardware") or {}
    devices = sorted(set(hardware.get("gpus") or [])) or [hardware.get("machine")]
    software = {"Python": launch.get("python"), **(launch.get("software") or {})}
    named = [
        f"{name} {software[name]}"
        for name in ("Python", "torch", "deepspeed")
        if software.get(name)
    ]
    found = {"software": ", ".join(named)}
    if launch.get("world_size") and all(devices):
        found["hardware"] = f"{launch['world_size']} rank(s) on {' and '.join(devices)}"
    return found
