"""A run in progress on one rank, put together from settings, dataset and newest checkpoint."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pipeline.shards.growing import WaitPolicy
from pipeline.storage.folder import parse_storage_options
from pipeline.storage.hub import revision_of
from pipeline.storage.secret_values import hide
from trainer.checkpoints.read import STATE, load_checkpoint, read_state
from trainer.checkpoints.resume import choose_checkpoint, copy_run, restore_run
from trainer.checkpoints.saver import CheckpointSaver
from trainer.checkpoints.store import CheckpointStore
from trainer.conversion.export import VOCAB
from trainer.conversion.initial_weights import resolve_model
from trainer.engine.start import start_engine
from trainer.guards.spike_guard import SpikeGuard
from trainer.guards.watchdog import Watchdog
from trainer.guards.weights_check import WeightsCheck
from trainer.model.bert import build_model
from trainer.model.config import BertConfig
from trainer.optim.build_optimizer import build_optimizer
from trainer.optim.sharded import ShardedOptimizer
from trainer.order.source import Mixture, open_mixture, open_mixture_again, opened_mixture
from trainer.order.state import parse_state
from trainer.pretrain.prepare_model import prepare_model
from trainer.process.ranks import Ranks, device_name, together
from trainer.process.stopping import StopRequest
from trainer.runs.epochs import instances_a_pass, lengthen_phases
from trainer.runs.run_folder import RunFolder, lock_run, prepare_run
from trainer.settings import PretrainSettings
from trainer.watch.gauge import Gauge
from trainer.watch.recorder import Recorder, open_recorder
from trainer.watch.terminal import Progress


@dataclass(frozen=True)
class Position:
    """How far a run has come; what its checkpoints say beside tensors.

    Counts are of all ranks over the whole run; `phase` is that of the next step, `phase_step` the
    steps made in it, `phase_seconds` its time, where that decides. `drawn` has instances and tokens
    of every dataset; `streams` the state of every length read so far, by the length in digits;
    `guard` that of the spike guard, in checkpoints only.
    """

    step: int = 0
    phase: int = 0
    phase_step: int = 0
    tokens: int = 0
    instances: int = 0
    drawn: Sequence[Sequence[int]] = ()
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)
    phase_seconds: float = 0.0
    guard: dict[str, Any] = field(default_factory=dict)


@dataclass
class Run:
    """A run in progress on one rank; the loop changes what stands below `progress`."""

    settings: PretrainSettings
    ranks: Ranks
    mixture: Mixture
    folder: RunFolder
    engine: Any
    optimizer: ShardedOptimizer
    saver: CheckpointSaver
    store: CheckpointStore | None
    guard: SpikeGuard
    weights_check: WeightsCheck
    watchdog: Watchdog
    wait_policy: WaitPolicy
    progress: Progress
    recorder: Recorder
    gauge: Gauge
    position: Position
    step_started: float = 0.0
    stop: StopRequest = field(default_factory=StopRequest)  # of this rank
    must_stop: bool = False  # agreed by all ranks

    @property
    def is_finished(self) -> bool:
        """Whether every phase is over."""
        return self.position.phase == len(self.settings.phases)

    def close(self) -> None:
        """Ends what watches and shows the run."""
        for each in (self.watchdog, self.recorder, self.progress):
            each.close()

    def save(self) -> None:
        """Saves in the background, once the weights are known to be sound."""
        self.weights_check.check()
        self.recorder.flush()
        position = {**vars(self.position), "guard": self.guard.to_dict()}
        self.saver.save(position, self.engine, self.optimizer)

    def is_due(self, interval: int) -> bool:
        """Whether something done every `interval` steps, and after each phase, is due now."""
        is_multiple = interval > 0 and self.position.step % interval == 0
        return is_multiple or self.position.phase_step == 0


def open_run(settings: PretrainSettings, deepspeed: dict[str, Any], ranks: Ranks) -> Run | None:
    """Everything a run needs, at its newest checkpoint or its start; None when it is finished."""
    folder, position = RunFolder(Path(settings.output)), Position()
    say = (lambda line: tqdm.write(hide(line))) if ranks.rank == 0 else lambda _: None
    wait_policy = WaitPolicy(60 * settings.follow_limit_minutes, say)
    with together(ranks):
        options = parse_storage_options(settings.storage_options)
    mixture = open_data(settings.data, options, wait_policy if settings.follow else None, ranks)
    with together(ranks):
        model_config = check_mixture(settings, mixture, ranks.world_size)
        settings = resolve_epochs(settings, mixture)
        url = settings.checkpoint.url
        store = None if url is None else CheckpointStore(url, options)
        if ranks.rank == 0:
            lock_run(folder)
            if store is not None:
                restore_run(folder, store)
            revision = None
            if settings.init_from is not None and not folder.facts.is_file():
                revision = revision_of(resolve_model(settings.init_from))
            prepare_run(settings, mixture, model_config, ranks.world_size, revision)
    copy_run(folder, store, ranks)
    checkpoint = choose_checkpoint(folder, store, ranks, settings.checkpoint.skip_damaged, say)
    if checkpoint is not None:
        with together(ranks):
            position = read_position(checkpoint)
            refuse_consumed(settings, position)
    progress = Progress(settings.num_steps, position.step, shown=ranks.rank == 0)
    if position.phase == len(settings.phases):
        progress.say(
            f"{folder.path}: this run is finished, all {position.step} steps are made; to train on,"
            f" `python -m trainer export {folder.path} --output MODEL`, and give pretrain --init_from MODEL and another"
            " --output"
        )
        return None
    model = build_model(model_config, settings.seed)
    with together(ranks):
        for line in prepare_model(model, settings, checkpoint, folder.path / VOCAB):
            progress.say(line)
    optimizer = build_optimizer(model, settings.optimizer)
    engine = start_engine(model, optimizer, deepspeed, ranks)
    if checkpoint is not None:
        load_checkpoint(checkpoint, engine, optimizer, ranks)
        progress.say(f"{folder.path}: continuing after step {position.step}")
    recorder = Recorder()
    with together(ranks):
        if ranks.rank == 0:
            recorder = open_recorder(folder, settings, position.step)
    gauge = Gauge(model_config, settings.phases, ranks, settings.peak_tflops)
    if gauge.peak_tflops is None and ranks.device.type == "cuda":
        device = device_name(ranks.device)
        progress.say(f"MFU is left out: no data sheet is known for {device}, give --peak_tflops")
    saver = CheckpointSaver(folder, settings.checkpoint, ranks, store, progress.say)
    saver.prepare(engine, optimizer)
    guard, safety = SpikeGuard(settings.safety, position.guard), settings.safety
    weights_check = WeightsCheck(model, optimizer, ranks, safety.weights_interval)
    watchdog = Watchdog(60 * safety.watchdog_minutes, folder.stacks, ranks)
    of_model, shown = (engine, optimizer, saver, store), (progress, recorder, gauge)
    guards = guard, weights_check, watchdog, wait_policy
    return Run(settings, ranks, mixture, folder, *of_model, *guards, *shown, position)


def open_data(
    entries: Sequence[str],
    options: Mapping[str, Any] | None,
    wait_policy: WaitPolicy | None,
    ranks: Ranks,
) -> Mixture:
    """The datasets, whose tables rank 0 reads for all ranks; raises as `open_mixture`.

    With a wait policy a build is followed, in which every rank looks for passes itself.
    """
    mixture: Mixture = ()
    with together(ranks):
        if ranks.rank == 0 or wait_policy:
            mixture = open_mixture(entries, options, wait_policy)
        opened = () if wait_policy else opened_mixture(mixture)
    if wait_policy:
        return mixture
    opened = ranks.from_first(opened)
    return mixture or open_mixture_again(opened, options)


def read_position(checkpoint: Path) -> Position:
    """How far a run had come at a checkpoint; a ValueError where its state says less."""
    state = read_state(checkpoint)
    names = [each.name for each in dataclasses.fields(Position)]
    if lacking := ", ".join(name for name in names if name not in state):
        where = checkpoint / STATE
        raise ValueError(f"{where} lacks {lacking}; go back to the checkpoint before it")
    return Position(**{name: state[name] for name in names})


def refuse_consumed(settings: PretrainSettings, position: Position) -> None:
    """Refuses a `skip` of what was consumed already, of any stream that was begun."""
    for seq_len, state in position.streams.items():
        parse_state(state).skipping(settings.skipped(*settings.phases_of(int(seq_len))))


def resolve_epochs(settings: PretrainSettings, mixture: Mixture) -> PretrainSettings:
    """The settings with steps in the place of epochs."""
    if settings.epochs is None:
        return settings
    a_pass = [instances_a_pass(mixture, phase.seq_len) for phase in settings.phases]
    return dataclasses.replace(settings, phases=lengthen_phases(settings, a_pass), epochs=None)


def check_mixture(settings: PretrainSettings, mixture: Mixture, world_size: int) -> BertConfig:
    """The model's config with the datasets' vocabulary; settings and datasets are held to fit."""
    config = settings.model_config(mixture[0].dataset.manifest.vocab_size)
    wanted = {phase.seq_len for phase in settings.phases}
    for each in mixture:
        groups = each.dataset.manifest.groups
        found = {group.seq_len for group in groups if group.split == "train"}
        if lacking := sorted(wanted - found):
            raise ValueError(
                f"{each.dataset.url}: no train instances of seq_len {', '.join(map(str, lacking))}; the dataset has "
                f"{', '.join(f'train L{length}' for length in sorted(found))}; build it with --seq_lens "
                f"{' '.join(map(str, sorted(wanted | found)))}, or choose other phases"
            )
    for index, phase in enumerate(settings.phases):
        if phase.seq_len > config.max_position_embeddings:
            raise ValueError(
                f"phases.{index}.seq_len is {phase.seq_len}, the model reads {config.max_position_embeddings} tokens; "
                "raise model.overrides.max_position_embeddings"
            )
        if phase.global_batch < world_size:
            raise ValueError(
                f"phases.{index}.global_batch is {phase.global_batch} for {world_size} ranks; every rank needs at "
                "least one instance a step: raise it or start fewer ranks"
            )
    return config
