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
    """The facts about a run by which questions about its steps are answered.

    Attributes:
        name: The folder or URL of the run.
        settings: The run's settings, as far as they decide what steps read. All other settings have
            their defaults, whatever the run was started with.
        mixture: The datasets of the run.
        made: The steps that the run has made, from metrics.jsonl.
        anomalies: The steps whose gradients were not used, in the order in which they were made.
            Steps that the run has undone since are among them.
        checkpoints: The numbers of steps after which the run's checkpoints were saved, ascending.
        states: The states of the run's streams in the newest checkpoint. The key is the length of
            the stream's instances, such as "128".
        trunk: The run that this run continues, and the number of the last step that was taken over
            from it; None if this run continues no other.
        left_out: The documents whose instances the run leaves out; None if there are none.
        knows_refused: Whether it is known which gradients were not used. It is False for a run at a
            URL without anomalies.jsonl, because earlier versions did not upload this file.
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
        """Returns whether the gradient of a step was used; None if that is not known.

        Args:
            step: The number of the step; None for a step of the run that this run continues.
        """
        return step not in self.refused if self.knows_refused and step is not None else None

    @cached_property
    def refused(self) -> dict[int, Anomaly]:
        """The anomalies of the steps in `made`, by the numbers of the steps.

        If the run has undone a step and made another one of the same number, the anomaly of the
        step that was undone is left out.
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
    """Yields what is known of a run, for a `with` block.

    If the run is at a URL, its files are copied to this machine. The copies are deleted at the end
    of the block.

    Args:
        name: The folder of the run, or its --checkpoint.url.
        data: URLs of the datasets in the order of the run; empty if none was moved.
        options: Options of the filesystems of the run and the datasets.
        cache_dir: The folder for the index from documents to instances; None for the default.

    Raises:
        FileNotFoundError: There is no run, or a dataset is gone.
        ValueError: A file of the run is damaged, or a dataset is not the one that the run was
            trained on.
    """
    with fetched_runs([name], options) as ([folder], _):
        run = RunFolder(Path(folder))
        facts = run.read_facts()
        settings = decisive_settings(run.read_config(), f"{name}/config.yaml")
        checkpoints, states = _read_checkpoints(CheckpointStore(name, options))
        trunk = facts.get("trunk")
        documents = run.read_left_out()
        made = read_made_steps(run.metrics, f"{name}/metrics.jsonl")
        anomalies = read_anomalies(run, f"{name}/anomalies.jsonl")
        _refuse_other_phases(name, made, anomalies, len(settings.phases))
        yield AskedRun(
            name=name,
            settings=settings,
            mixture=_open_mixture(name, facts["datasets"], data, options),
            made=made,
            anomalies=anomalies,
            checkpoints=checkpoints,
            states=states,
            trunk=(str(trunk["run"]), int(trunk["step"])) if trunk else None,
            left_out=LeftOutDocuments(documents, cache_dir) if documents else None,
            knows_refused=Folder(name, options).is_local or run.anomalies.is_file(),
        )


def _refuse_other_phases(
    name: str, made: MadeSteps, anomalies: Sequence[Anomaly], num_phases: int
) -> None:
    """Checks that the settings of a run have the phases of all its steps.

    Args:
        name: The run, for messages.
        made: The steps that the run has made.
        anomalies: The steps whose gradients were not used.
        num_phases: The number of phases in the settings.

    Raises:
        ValueError: A step is of a phase that the settings do not have.
    """
    phases = [("metrics.jsonl", phase) for phase in set(made.phase.tolist())]
    phases += [("anomalies.jsonl", anomaly.phase) for anomaly in anomalies]
    for file, phase in phases:
        if not 0 <= phase < num_phases:
            raise ValueError(
                f"{name}/{file} has a step of phase {phase}, config.yaml has {num_phases} phase(s),"
                " counted from 0; a file of the run was changed, or belongs to another"
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
    """Returns `AskedRun.checkpoints` and `AskedRun.states`; both are empty without a checkpoint."""
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
        facts: What run.json says of each dataset.
        data: URLs of the datasets in the order of `facts`; empty if none was moved.
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
    """Opens a dataset, and compares its hashes with those that run.json has of it.

    If the dataset was still being built when the run was launched, run.json has no root hash of it.
    `trainer.ask.asked_stream` then compares the data that the run has read with the newest
    checkpoint.

    Args:
        url: The URL of the dataset.
        of_run: What run.json says of the dataset.
        name: The run, for messages.
        options: Options of the dataset's filesystem.

    Raises:
        FileNotFoundError: There is no dataset at the URL.
        ValueError: A hash differs, so it is not the dataset of the run.
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
