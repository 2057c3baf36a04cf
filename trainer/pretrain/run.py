"""A run in progress on one rank, put together from settings, dataset and newest checkpoint."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.shards.growing import WaitPolicy
from pipeline.storage.folder import parse_storage_options
from pipeline.storage.terminal import say
from trainer.checkpoints.read import STATE, load_checkpoint, read_state, read_weights
from trainer.checkpoints.resume import RunCheckpoints, copy_run, find_run, restore_run, split_step
from trainer.checkpoints.store import CheckpointStore
from trainer.checkpoints.write import CheckpointSaver
from trainer.conversion.initial_weights import extend_rows, read_initial_weights, resolve_model
from trainer.conversion.names import VOCAB
from trainer.conversion.word_rules import refuse_other_words
from trainer.engine.zero import start_engine
from trainer.guards.spike_guard import SpikeGuard
from trainer.guards.watchdog import Watchdog
from trainer.guards.weights_check import WeightsCheck
from trainer.model.bert import BertForPreTraining, build_model, compile_model
from trainer.model.config import BertConfig
from trainer.optim.build_optimizer import build_optimizer
from trainer.optim.sharded import ShardedOptimizer
from trainer.pretrain.objectives import freeze_unused
from trainer.pretrain.pairs import ValidationPairs, load_pairs
from trainer.process.ranks import Ranks, together
from trainer.process.stopping import StopRequest
from trainer.runs.epochs import instances_a_pass, lengthen_phases
from trainer.runs.run_folder import (
    RunFolder,
    check_trunk,
    follow_masking,
    lock_run,
    masking_of,
    prepare_run,
)
from trainer.settings import Phase, PretrainSettings
from trainer.stream.order.source import Mixture, open_mixture, open_mixture_again, opened_mixture
from trainer.stream.order.state import parse_state
from trainer.watch.gauge import Gauge
from trainer.watch.recorder import Recorder, open_recorder
from trainer.watch.terminal import Progress

# What does not change weights or what they mean.
_FREE_FIELDS = ("hidden_dropout", "attention_dropout", "initializer_range", "attention_backend")


@dataclass(frozen=True)
class Position:
    """How far a run has come; what its checkpoints say beside tensors.

    Counts are of all ranks over the whole run; `phase` is that of the next step, `phase_step` the
    steps made in it, `phase_seconds` its time, where that decides. `drawn` has instances and tokens
    of every dataset; `streams` a state by the length in digits; `guard` is in checkpoints only.
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
    saved: RunCheckpoints
    guard: SpikeGuard
    weights_check: WeightsCheck
    watchdog: Watchdog
    wait_policy: WaitPolicy
    progress: Progress
    recorder: Recorder
    gauge: Gauge
    position: Position
    pairs: ValidationPairs | None
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
    tell = say if ranks.rank == 0 else lambda _: None
    wait_policy = WaitPolicy(60 * settings.follow_limit_minutes, tell)
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
            weights, trunk = None, dict[str, Any]()
            if settings.init_from is not None and not folder.facts.is_file():
                weights = resolve_model(settings.init_from)
            elif settings.continue_from is not None and not folder.facts.is_file():
                trunk = find_trunk(settings, mixture, options)
            settings = follow_masking(settings, masking_of_trunk(folder, trunk))
            prepare_run(settings, mixture, model_config, ranks.world_size, weights, trunk)
    copy_run(folder, store, ranks)
    with together(ranks):
        settings = follow_masking(settings, masking_of_trunk(folder))
    saved = RunCheckpoints(folder, store, ranks, settings.checkpoint.skip_damaged, say)
    checkpoint = choose_checkpoint(settings, saved, options)
    if checkpoint is not None:
        with together(ranks):
            position = find_position(settings, checkpoint)
            refuse_consumed(settings, position)
    progress = Progress(settings.num_steps, position.step, shown=ranks.rank == 0)
    if position.phase == len(settings.phases):
        progress.say(
            f"{folder.path}: this run is finished, all {position.step} steps are made; to train on,"
            f" give pretrain more steps, --continue_from {folder.path} and another --output"
        )
        return None
    pairs = load_pairs(settings, folder, model_config, ranks, progress.say)
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
    saver = CheckpointSaver(folder, settings.checkpoint, ranks, store, progress.say)
    saver.prepare(engine, optimizer)
    guard, safety = SpikeGuard(settings.safety, position.guard), settings.safety
    weights_check = WeightsCheck(model, optimizer, ranks, safety.weights_interval)
    watchdog = Watchdog(60 * safety.watchdog_minutes, folder.stacks, ranks)
    of_model, shown = (engine, optimizer, saver, saved), (progress, recorder, gauge)
    guards = guard, weights_check, watchdog, wait_policy
    return Run(settings, ranks, mixture, folder, *of_model, *guards, *shown, position, pairs)


def open_data(
    entries: Sequence[str], options: Mapping[str, Any] | None, wait: WaitPolicy | None, ranks: Ranks
) -> Mixture:
    """The datasets, whose tables rank 0 reads for all, if no rank has to follow a build."""
    mixture: Mixture = ()
    with together(ranks):
        if ranks.rank == 0 or wait:
            mixture = open_mixture(entries, options, wait)
        opened = () if wait else opened_mixture(mixture)
    if wait:
        return mixture
    opened = ranks.from_first(opened)
    return mixture or open_mixture_again(opened, options)


def read_position(checkpoint: Path) -> Position:
    """How far a run had come at a checkpoint."""
    state = read_state(checkpoint)
    return Position(**{each.name: state[each.name] for each in dataclasses.fields(Position)})


def find_position(settings: PretrainSettings, checkpoint: Path) -> Position:
    """How far the settings' run had come at a checkpoint, which may be that of its trunk."""
    position = read_position(checkpoint)
    facts = RunFolder(Path(settings.output)).read_facts() if settings.continue_from else {}
    is_trunk = facts.get("trunk", {}).get("step") == position.step
    return place_position(position, settings.phases) if is_trunk else position


def choose_checkpoint(
    settings: PretrainSettings, saved: RunCheckpoints, options: Mapping[str, Any] | None
) -> Path | None:
    """The run's newest checkpoint; before it has any, a copy of its trunk's, with its metrics."""
    found = saved.choose()
    if found is not None or settings.continue_from is None:
        return found
    with together(saved.ranks):
        step = saved.run.read_facts()["trunk"]["step"]
        there, _ = find_run(f"{split_step(settings.continue_from)[0]}@{step}", options)
    return dataclasses.replace(saved, store=there, skip_damaged=False).choose(before=step + 1)


def find_trunk(
    settings: PretrainSettings, mixture: Mixture, options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What run.json says of the run that `continue_from` names, once it is known to fit."""
    store, names = find_run(settings.continue_from or "", options)
    with store.opened(names[-1], [STATE]) as (run, checkpoint):
        step = place_position(read_position(checkpoint), settings.phases).step
        masking = masking_of(run)
        check_trunk(run, follow_masking(settings, masking), mixture)
        facts = run.read_facts()
    roots = [each["root_hash"] for each in facts["datasets"]]
    trunk = {"run": store.url, "step": step, "root_hashes": roots, "id": facts["id"]}
    trunk |= {"masking": masking} if "@" in masking else {}
    begin = ("base_model", "init_from_revision")
    return {key: facts[key] for key in begin if key in facts} | {"trunk": trunk}


def masking_of_trunk(folder: RunFolder, found: Mapping[str, Any] | None = None) -> str | None:
    """Returns the masking of the run that this run continues, or None if it continues none.

    Args:
        folder: The run's folder.
        found: The result of `find_trunk`, for a folder that does not hold a run yet.
    """
    facts = found or (folder.read_facts() if folder.facts.is_file() else {})
    masking: str | None = facts.get("trunk", {}).get("masking")
    return masking


def place_position(position: Position, phases: Sequence[Phase]) -> Position:
    """The position of a trunk in the phases of a run that goes on from it; they have to fit."""
    plan = [index for index, phase in enumerate(phases) for _ in range(phase.steps)]
    made = plan[: position.step]
    instances = sum(phases[index].global_batch for index in made)
    if len(plan) <= position.step or instances != position.instances:
        raise ValueError(
            f"continue_from names a checkpoint of {position.step:,} steps with"
            f" {position.instances:,} instances; the first {len(made):,} steps of phases have"
            f" {instances:,}, and {len(plan) - len(made):,} follow. Phases begin with the steps and"
            " batches of the run gone on from, and have more"
        )
    phase = plan[position.step]
    phase_step = made.count(phase)
    return dataclasses.replace(position, phase=phase, phase_step=phase_step, phase_seconds=0.0)


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
            there = ", ".join(f"train L{length}" for length in sorted(found))
            raise ValueError(
                f"{each.dataset.url}: no train instances of seq_len "
                f"{', '.join(map(str, lacking))}; the dataset has {there}; build it with --seq_lens"
                f" {' '.join(map(str, sorted(wanted | found)))}, or choose other phases"
            )
    for index, phase in enumerate(settings.phases):
        if phase.seq_len > config.max_position_embeddings:
            raise ValueError(
                f"phases.{index}.seq_len is {phase.seq_len}, the model reads "
                f"{config.max_position_embeddings} tokens; raise "
                "model.overrides.max_position_embeddings"
            )
        if phase.global_batch < world_size:
            raise ValueError(
                f"phases.{index}.global_batch is {phase.global_batch} for {world_size} ranks; every"
                " rank needs at least one instance a step: raise it or start fewer ranks"
            )
    return config


def prepare_model(
    model: BertForPreTraining, settings: PretrainSettings, checkpoint: Path | None, vocabulary: Path
) -> Iterator[str]:
    """Freezes, fills and compiles the model as asked; says which weights came from elsewhere."""
    freeze_unused(model, settings.objective)
    model.bert.recompute_layers = settings.activation_checkpointing
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    if checkpoint is not None and frozen:
        # No optimizer has them, so they are in no fragment.
        weights = read_weights(checkpoint)
        if lacking := ", ".join(sorted(frozen - weights.keys())[:3]):
            raise ValueError(f"{checkpoint} does not hold {lacking}; it is of another model")
        model.load_state_dict({name: weights[name].float() for name in frozen}, strict=False)
    elif checkpoint is None and settings.init_from is not None:
        yield from _start_from(resolve_model(settings.init_from), model, vocabulary)
    if settings.compile:
        compile_model(model)


def _start_from(folder: str, model: BertForPreTraining, vocabulary: Path) -> Iterator[str]:
    found, num_new = read_initial_weights(folder), 0
    refuse_other_words(folder, str(vocabulary.parent))
    if found.vocab is not None:
        found, num_new = extend_rows(found, vocabulary.read_bytes(), folder)
    _check_config(found.config, model.config, folder)
    missing = model.load_state_dict(found.state, strict=False).missing_keys
    yield f"weights are those of {folder}"
    if num_new:
        begin = "each begins as the mean of the old pieces that it was cut into"
        yield f"  {num_new:,} pieces are new to it: {begin}"
    if missing:
        yield f"  it lacks {', '.join(sorted(missing))}, which begin as new"
    if found.vocab is None:
        yield "  it has no vocab.txt: only the size says that its vocabulary is the dataset's"


def _check_config(found: BertConfig, expected: BertConfig, folder: str) -> None:
    """Refuses weights of another model by the name of the setting that would fit them."""
    ours = vars(expected)
    wrong = [
        f"{name} {value} (this run: {ours[name]})"
        for name, value in vars(found).items()
        if name not in _FREE_FIELDS and value != ours[name]
    ]
    if wrong:
        raise ValueError(
            f"{folder} has {', '.join(wrong)}; choose the model preset and overrides that fit it, "
            "the dataset for vocab_size, and objective for is_causal"
        )
