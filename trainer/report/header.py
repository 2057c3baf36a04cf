"""What a run is, in three lines above its charts: model, data, and how far it has come."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipeline.pages.text import escape
from trainer.model.config import BertConfig
from trainer.model.flops import num_parameters
from trainer.report.read import ReadRun, number


def describe(run: ReadRun) -> str:
    """A paragraph of HTML; what the run's files do not say is left out."""
    lines = [str(run.path), *filter(None, [_model(run), *map(_data, run.datasets), _state(run)])]
    return f'<p class="soft">{"<br>".join(map(escape, lines))}</p>'


def _model(run: ReadRun) -> str:
    """Sizes and number of parameters of the model."""
    names = {field.name for field in dataclasses.fields(BertConfig)}
    found = run.facts.get("model")
    try:
        known = {key: value for key, value in dict(found or {}).items() if key in names}
        if not known:
            return ""
        config = BertConfig(**known)
        parameters = num_parameters(config)
    except (TypeError, ValueError):
        return ""
    return (
        f"model: {config.num_layers} layers of {config.hidden_size}, {config.num_heads} heads, vocabulary of "
        f"{config.vocab_size:,}: {parameters:,} parameters"
    )


def _data(facts: Mapping[str, Any]) -> str:
    root_hash = str(facts.get("root_hash"))[:16]
    return f"data: {facts.get('name')} at {facts.get('url')}, root hash {root_hash}"


def _state(run: ReadRun) -> str:
    """When the run was first and last started, and whether it has reached its end."""
    times = [str(each.get("time", "")) for each in run.launches]
    started = f"started {times[0]}" if times and times[0] else ""
    if len(times) > 1:
        started += f", launched {len(times)} times, last {times[-1]}"
    step = run.train[-1]["step"] if run.train else 0
    planned = _planned_steps(run)
    if run.train and _is_finished(run, step, planned):
        state = f"finished after {step:,} steps"
    else:
        state = f"not finished: {step:,} of {planned:,} steps" if planned else f"{step:,} steps"
    return "; ".join(filter(None, [started, state]))


def _planned_steps(run: ReadRun) -> int | None:
    """Steps of all phases; None where time decides or the settings could not be read."""
    steps = [
        value
        for key, value in run.config.items()
        if key.startswith("phases.") and key.endswith(".steps")
    ]
    if run.config.get("budget_hours") is not None or not all(
        isinstance(each, int) for each in steps
    ):
        return None
    return sum(steps) or None


def _is_finished(run: ReadRun, step: int, planned: int | None) -> bool:
    target = number(run.config, "validation.stop_at_mlm_accuracy")
    reached = number(run.validation[-1], "mlm_accuracy") if run.validation else None
    if target is not None and reached is not None and reached >= target:
        return True
    if run.config.get("budget_hours") is not None:
        return number(run.train[-1], "eta_seconds") == 0
    return planned is not None and step >= planned
