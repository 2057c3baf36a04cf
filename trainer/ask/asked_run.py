"""Opens a run for questions: its settings, datasets, steps, refused steps and checkpoints."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.growing import PLAN, UNKNOWN_HASH, WaitPolicy, open_growing
from pipeline.storage.folder import Folder
from trainer.ask.made_steps import Anomaly, MadeSteps, read_anomalies, read_made_steps
from trainer.checkpoints.files import STATE, read_state, step_of
from trainer.checkpoints.store import CheckpointStore
from trainer.runs.run_folder import REMEDY, RunFolder
from trainer.settings import Phase, PretrainSettings
from trainer.stream.left_out import LeftOutDocuments
from trainer.stream.order.source import Mixture, WeightedDataset, parse_entries
from trainer.stream.order.state import StreamState, parse_state
from trainer.watch.fetch_run import fetched_runs

NO_WAIT = WaitPolicy(limit_seconds=0)


@dataclass(frozen=True)
class AskedRun:
    """What is known of a run.

    Attributes:
        name: The folder or URL of the run.
        settings: The settings that decide what its steps read; the others have their defaults.
        mixture: Its datasets.
        made: The steps that were made.
        anomalies: The steps whose gradients were not used, in the order in which they were made.
        checkpoints: The steps of its checkpoints, ascending.
        states: The states of its streams in the newest checkpoint, by the length in digits.
        trunk: The run that this run continues, and the step from which on; None if there is none.
        left_out: The documents whose instances the run leaves out; None if there are none.
        knows_refused: Whether `anomalies` is known. At a URL a run has no anomalies.jsonl.
    """

    name: str
    settings: PretrainSettings
    mixture: Mixture
    made: MadeSteps
    anomalies: list[Anomaly]
    checkpoints: list[int]
    states: Mapping[str, StreamState]
    trunk: tuple[str, int] | None
    left_out: LeftOutDocuments | None = None
    knows_refused: bool = True

    def is_used(self, step: int | None) -> bool | None:
        """Returns whether the gradient of a step was used; None if that is not known."""
        return step not in self.refused if self.knows_refused and step is not None else None

    @cached_property
    def refused(self) -> dict[int, Anomaly]:
        """The steps that were made although their gradients were not used, by their numbers.

        Steps that the run has undone are not among them, although later steps have their numbers.
        """
        of_step = {}
        for anomaly in self.anomalies:
            index = self.made.find(anomaly.step)
            if index is not None and int(self.made.position[index]) == anomaly.start:
                of_step[anomaly.step] = anomaly
        return of_step


@contextlib.contextmanager
def opened_run(
    name: str,
    data: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    cache_dir: str | None = None,
) -> Iterator[AskedRun]:
    """Yields a run; files of a run at a URL are copied to this machine as long as the block lasts.

    Args:
        name: The folder of the run, or its --checkpoint.url.
        data: URLs of the datasets, if they were moved.
        options: Options of the filesystems of the run and the datasets.
        cache_dir: The folder of the index from documents to instances; None for the default.

    Raises:
        FileNotFoundError: There is no run, or a dataset is gone.
        ValueError: A file of the run is damaged, or a dataset is another one than the run's.
    """
    with fetched_runs([name], options) as ([folder], _):
        run = RunFolder(Path(folder))
        facts = run.read_facts()
        settings = decisive_settings(run.read_config(), f"{name}/config.yaml")
        checkpoints, states = _read_checkpoints(CheckpointStore(name, options))
        trunk = facts.get("trunk")
        documents = run.read_left_out()
        yield AskedRun(
            name=name,
            settings=settings,
            mixture=_open_mixture(name, facts["datasets"], data, options),
            made=read_made_steps(run.metrics, f"{name}/metrics.jsonl"),
            anomalies=read_anomalies(run, f"{name}/anomalies.jsonl"),
            checkpoints=checkpoints,
            states=states,
            trunk=(str(trunk["run"]), int(trunk["step"])) if trunk else None,
            left_out=LeftOutDocuments(documents, cache_dir) if documents else None,
            knows_refused=Folder(name, options).is_local,
        )


def decisive_settings(config: Mapping[str, Any], where: str) -> PretrainSettings:
    """Returns the settings of a run that decide what its steps read.

    Args:
        config: The content of the run's config.yaml.
        where: The file, for messages.

    Raises:
        ValueError: A setting is missing or has another form.
    """
    names = {field.name for field in dataclasses.fields(Phase)}
    try:
        phases = [
            Phase(**{key: value for key, value in phase.items() if key in names})
            for phase in config["phases"]
        ]
        settings = PretrainSettings(
            data=[str(entry) for entry in config["data"]],
            output="",
            phases=phases,
            objective=config.get("objective", "mlm+nsp"),
            masking=str(config["masking"]),
            seed=int(config["seed"]),
            skip=[str(entry) for entry in config.get("skip") or ()],
            budget_hours=config.get("budget_hours"),
        )
        settings.skipped()
        _ = settings.mask_shares
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where} is damaged: {error!r}; {REMEDY}") from error
    return settings


def _read_checkpoints(store: CheckpointStore) -> tuple[list[int], dict[str, StreamState]]:
    """Returns the steps of a run's checkpoints, and the states of its streams in the newest one."""
    names, _ = store.list_checkpoints()
    if not names:
        return [], {}
    with store.opened(names[-1], [STATE]) as (_, checkpoint):
        streams = read_state(checkpoint)["streams"]
    states = {seq_len: parse_state(state) for seq_len, state in streams.items()}
    return [step_of(name) for name in names], states


def _open_mixture(
    name: str,
    facts: Sequence[Mapping[str, Any]],
    data: Sequence[str],
    options: Mapping[str, Any] | None,
) -> Mixture:
    """Opens the datasets of a run, and checks that they are the ones it was trained on.

    Args:
        name: The run, for messages.
        facts: What run.json says of its datasets.
        data: URLs of the datasets, if they were moved.
        options: Options of the datasets' filesystem.

    Raises:
        FileNotFoundError: A dataset is gone.
        ValueError: A dataset is another one, or `data` has another number of datasets.
    """
    urls = [str(dataset["url"]) for dataset in facts]
    if data:
        urls = [url for _, url, _ in parse_entries(data)]
        if len(urls) != len(facts):
            names = ", ".join(str(dataset["name"]) for dataset in facts)
            raise ValueError(
                f"--data names {len(urls)} dataset(s), {name} was trained on {len(facts)}: {names};"
                " give all of them in this order"
            )
    return tuple(
        WeightedDataset(str(of_run["name"]), _open(url, of_run, name, options), of_run["weight"])
        for url, of_run in zip(urls, facts, strict=True)
    )


def _open(
    url: str, of_run: Mapping[str, Any], name: str, options: Mapping[str, Any] | None
) -> Dataset:
    """Opens a dataset, and compares it with what run.json says of it.

    A dataset that was still being built when the run was launched has no root hash there; what was
    read of it is compared with the state of the stream later (`trainer.ask.asked_stream`).
    """
    try:
        if Folder(url, options).exists(PLAN):
            dataset = open_growing(url, options, NO_WAIT)
        else:
            dataset = open_dataset(url, options)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error}. {name} was trained on it; if it was moved, --data says where it is"
        ) from error
    for key in ("root_hash", "settings_hash"):
        then = of_run[key]
        now = getattr(dataset.manifest, key)
        if then is not None and now not in (then, UNKNOWN_HASH):
            raise ValueError(
                f"{url} is not the dataset {of_run['name']} that {name} was trained on: its"
                f" {key.replace('_', ' ')} is {now[:16]}, run.json says {then[:16]}; --data says"
                " where that dataset is"
            )
    return dataset
