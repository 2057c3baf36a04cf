"""Puts a run together on one rank, from its settings, its datasets and its newest checkpoint."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.shards.document_list import read_document_list, refuse_unknown
from pipeline.shards.growing import WaitPolicy
from pipeline.storage.folder import Folder, parse_storage_options
from pipeline.storage.terminal import say
from trainer.checkpoints.files import STATE, read_state
from trainer.checkpoints.read import load_checkpoint, read_weights
from trainer.checkpoints.resume import RunCheckpoints, copy_run, find_run, restore_run, split_step
from trainer.checkpoints.store import CheckpointStore
from trainer.checkpoints.write import CheckpointSaver
from trainer.conversion.initial_weights import (
    InitialWeights,
    extend_rows,
    read_initial_weights,
    resolve_model,
)
from trainer.conversion.names import VOCAB
from trainer.conversion.word_rules import refuse_other_words
from trainer.engine.deepspeed_config import deepspeed_config
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
from trainer.process.precision import (
    Choice,
    Device,
    Precision,
    choose_precision,
    warn_of_slow_bf16,
    weakest,
)
from trainer.process.ranks import Ranks, describe_device, together
from trainer.process.stopping import StopRequest
from trainer.runs.check_mixture import check_mixture
from trainer.runs.epochs import instances_per_pass, lengthen_phases
from trainer.runs.run_folder import (
    RunFolder,
    check_trunk,
    follow_masking,
    lock_run,
    masking_of,
    prepare_run,
    remove_run,
)
from trainer.settings import Phase, PretrainSettings
from trainer.stream.known import KnownPasses
from trainer.stream.left_out import LeftOutDocuments
from trainer.stream.order.source import Mixture, open_mixture, open_mixture_again, opened_mixture
from trainer.stream.order.state import parse_state
from trainer.stream.step import RankStep
from trainer.watch.gauge import Gauge
from trainer.watch.recorder import Recorder, open_recorder
from trainer.watch.terminal import Progress

_FREE_FIELDS = ("hidden_dropout", "attention_dropout", "initializer_range", "attention_backend")
"""Fields of BertConfig that may differ from those of the weights that a run starts from."""


@dataclass(frozen=True)
class Position:
    """How far a run has come. Checkpoints store it beside the tensors.

    Counts are over all ranks and the whole run.

    Attributes:
        step: Number of steps made.
        phase: Index of the phase of the next step; the number of phases if the run is finished.
        phase_step: Number of steps made in that phase.
        tokens: Number of tokens trained on.
        instances: Number of instances trained on.
        drawn: For each dataset of the mixture the number of instances and the number of tokens that
            the run has trained on. Empty before the first step.
        streams: The state of each stream, as `RankStep.state` returns it. There is one stream for
            each length of instances, and its key is the length in digits, such as "128".
        phase_seconds: Seconds spent in the phase; 0 if the run has no budget of hours.
        guard: The state of the spike guard, which checkpoints have. Empty in a position that was
            not read from a checkpoint.
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
    """A run in progress on one rank.

    The loop changes `position`, `guard`, `step_started`, `stop` and `must_stop`.

    Attributes:
        settings: The settings of the run, with steps instead of epochs.
        ranks: All ranks.
        mixture: The datasets.
        folder: The run's folder.
        engine: DeepSpeed's engine around the model.
        optimizer: The optimizer.
        saver: Writes new checkpoints.
        saved: The checkpoints that were written. If training diverges, it chooses the one to go
            back to, and removes those after it.
        guard: Refuses gradients that are too large.
        weights_check: Checks that the weights of all ranks agree and have not flipped a bit.
        watchdog: Ends the run if it hangs.
        wait_policy: How long to wait for passes of a dataset that is still being built.
        progress: Shows the progress bar and prints lines.
        recorder: Writes metrics.jsonl, on rank 0.
        gauge: Measures speed for metrics.jsonl.
        position: How far the run has come.
        pairs: The minimal pairs to measure the model on; None if there are none.
        left_out: The documents whose instances are left out; None if there are none.
        step_started: When the current step began, by `time.monotonic`.
        stop: Whether this rank was told to stop.
        must_stop: Whether all ranks have agreed to stop.
        saved_position: The position of the checkpoint that this process saved last; None if it has
            saved none, or has gone back.
        save_seconds: Seconds for which saving has stopped the training since `take_save_seconds`
            was called last.
        stops_before: Called with this rank's share of each step before the step is made. If it
            returns True, which it must do on all ranks, the step is not made and the run stops.
            None makes all steps.
    """

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
    left_out: LeftOutDocuments | None = None
    step_started: float = 0.0
    stop: StopRequest = field(default_factory=StopRequest)
    must_stop: bool = False
    saved_position: Position | None = None
    save_seconds: float = 0.0
    stops_before: Callable[[RankStep], bool] | None = None

    @property
    def is_finished(self) -> bool:
        """Whether every phase is over."""
        return self.position.phase == len(self.settings.phases)

    def close(self) -> None:
        """Closes the watchdog, the metrics and the progress bar."""
        self.watchdog.close()
        self.recorder.close()
        self.progress.close()

    def save(self) -> None:
        """Checks the weights, and saves a checkpoint in the background.

        It does nothing if the checkpoint of this position was saved already.

        Raises:
            CorruptWeightsError: The weights of the ranks differ, or a bit of them has flipped.
        """
        if self.position == self.saved_position:
            return
        began = time.monotonic()
        self.weights_check.check()
        self.recorder.flush()
        position = {**vars(self.position), "guard": self.guard.to_dict()}
        self.saver.save(position, self.engine, self.optimizer)
        self.saved_position = self.position
        self.save_seconds += time.monotonic() - began

    def take_save_seconds(self) -> float:
        """Returns how long saving has stopped the training since the last call."""
        seconds = self.save_seconds
        self.save_seconds = 0.0
        return seconds

    def is_due(self, interval: int) -> bool:
        """Returns whether something done every `interval` steps is due after this step.

        It is also due after the last step of each phase; with an interval of 0, only then.
        """
        is_multiple = interval > 0 and self.position.step % interval == 0
        return is_multiple or self.position.phase_step == 0


@dataclass(frozen=True)
class _Prepared:
    """A run whose folder exists and whose settings and data were found to fit, on one rank.

    Attributes:
        settings: The settings, with steps instead of epochs. If the run goes on from another run,
            `masking` is what `follow_masking` makes of it.
        storage_options: Options of the filesystems of datasets and of the checkpoint store.
        mixture: The datasets.
        model_config: The model, with the vocabulary of the datasets.
        wait_policy: How long to wait for passes that are being built.
        folder: The run's folder.
        saved: The run's checkpoints.
        left_out: The documents whose instances are left out; None if there are none.
    """

    settings: PretrainSettings
    storage_options: Mapping[str, Any] | None
    mixture: Mixture
    model_config: BertConfig
    wait_policy: WaitPolicy
    folder: RunFolder
    saved: RunCheckpoints
    left_out: LeftOutDocuments | None


@dataclass(frozen=True)
class _Trunk:
    """What a new run takes over from the trunk, the run that `continue_from` names.

    The defaults are those of a run that has no trunk.

    Attributes:
        facts: Entries about the trunk for the new run's run.json.
        left_out: The documents that the trunk leaves out, by the first 64 bits of their ids.
        position: How far the trunk had come, counted in the phases of the new run.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[int, ...] = ()
    position: Position = Position()


@dataclass(frozen=True)
class _Beginning:
    """What a run begins with, found before its folder is made.

    Attributes:
        settings: The settings; `masking` is what `follow_masking` makes of it.
        weights: The folder of the model that `init_from` names; None if the run is not new.
        trunk: What a new run takes over from the run that `continue_from` names.
        left_out: The documents that the run leaves out, by the first 64 bits of their ids.
    """

    settings: PretrainSettings
    weights: str | None
    trunk: _Trunk
    left_out: tuple[int, ...]


@dataclass(frozen=True)
class _Start:
    """Where a launch of a run begins.

    Attributes:
        checkpoint: The folder of the checkpoint to load; None if the run begins anew.
        position: How far the run has come at that checkpoint.
    """

    checkpoint: Path | None
    position: Position


@dataclass(frozen=True)
class _Trained:
    """What trains the model.

    Attributes:
        optimizer: The optimizer of the model.
        engine: DeepSpeed's engine around the model and the optimizer.
    """

    optimizer: ShardedOptimizer
    engine: Any


def open_run(settings: PretrainSettings, chosen: dict[str, Any], ranks: Ranks) -> Run | None:
    """Opens a run at its newest checkpoint, or at its start.

    Args:
        settings: The settings of the run.
        chosen: The values of the user's ds_config.json that are passed on to DeepSpeed, from
            `passed_to_deepspeed`.
        ranks: All ranks, which must call this together.

    Returns:
        The run, or None if all its steps are made.

    Raises:
        ValueError: Settings, data and checkpoint do not fit together. Raised on every rank. If the
            run is new, nothing is left of its folder.
        FileNotFoundError: A dataset is missing, or the run that `continue_from` names.
    """
    with contextlib.ExitStack() as removal:
        run = _open_run(settings, chosen, ranks, removal)
        removal.pop_all()
    return run


def _open_run(
    settings: PretrainSettings,
    chosen: dict[str, Any],
    ranks: Ranks,
    removal: contextlib.ExitStack,
) -> Run | None:
    """Does the work of `open_run`.

    Args:
        settings: The settings of the run.
        chosen: As `open_run` takes it.
        ranks: All ranks.
        removal: Gets what removes the folder of a new run, to be called if an error is raised.
    """
    prepared = _prepare(settings, chosen, ranks, removal)
    settings = prepared.settings
    folder = prepared.folder
    start = _find_start(prepared)
    position = start.position
    progress = Progress(settings.num_steps, position.step, shown=ranks.rank == 0)
    if position.phase == len(settings.phases):
        progress.say(
            f"{folder.path}: this run is finished, all {position.step} steps are made; to train on,"
            f" give pretrain more steps, --continue_from {folder.path} and another --output"
        )
        return None

    pairs = load_pairs(settings, folder, prepared.model_config, ranks, progress.say)
    trained = _start_training(prepared, start, chosen, progress)
    recorder = Recorder()
    with together(ranks):
        if ranks.rank == 0:
            recorder = open_recorder(folder, settings, position.step)
    gauge = Gauge(
        prepared.model_config,
        settings.phases,
        ranks,
        precision_of(settings),
        settings.peak_tflops,
    )
    saver = CheckpointSaver(folder, settings.checkpoint, ranks, prepared.saved.store, progress.say)
    saver.prepare(trained.engine, trained.optimizer)
    safety = settings.safety
    return Run(
        settings=settings,
        ranks=ranks,
        mixture=prepared.mixture,
        folder=folder,
        engine=trained.engine,
        optimizer=trained.optimizer,
        saver=saver,
        saved=prepared.saved,
        guard=SpikeGuard(safety, position.guard),
        weights_check=WeightsCheck(
            trained.engine, trained.optimizer, ranks, safety.weights_interval
        ),
        watchdog=Watchdog(60 * safety.watchdog_minutes, folder.stacks, ranks),
        wait_policy=prepared.wait_policy,
        progress=progress,
        recorder=recorder,
        gauge=gauge,
        position=position,
        pairs=pairs,
        left_out=prepared.left_out,
    )


def _prepare(
    settings: PretrainSettings,
    chosen: dict[str, Any],
    ranks: Ranks,
    removal: contextlib.ExitStack,
) -> _Prepared:
    """Opens the data, checks the settings against them, and makes or checks the run's folder.

    All ranks call this together. The arguments are those of `_open_run`.
    """
    device = weakest(ranks.gather(describe_device(ranks.device)))
    folder = RunFolder(Path(settings.output))
    tell = say if ranks.rank == 0 else lambda _: None
    wait_policy = WaitPolicy(60 * settings.follow_limit_minutes, tell)
    with together(ranks):
        storage_options = parse_storage_options(settings.storage_options)
    mixture = open_data(
        settings.data, storage_options, wait_policy if settings.follow else None, ranks
    )
    # Only rank 0 is sure to see the run's folder. It makes or checks the folder, decides the
    # precision by what is in there, and tells the other ranks.
    choice: Choice | None = None
    with together(ranks):
        model_config = check_mixture(settings, mixture, ranks.world_size)
        settings = resolve_epochs(settings, mixture)
        store = None
        if settings.checkpoint.url is not None:
            store = CheckpointStore(settings.checkpoint.url, storage_options)
        if ranks.rank == 0:
            existing = lock_run(folder)
            if existing is not None and not folder.facts.is_file():
                removal.callback(remove_run, folder, existing)
            if store is not None:
                restore_run(folder, store)
            if folder.facts.is_file():
                removal.pop_all()  # the run was begun earlier
            choice = decide_precision(settings, device, storage_options)
            settings = with_choice(settings, choice)
            # It refuses what DeepSpeed cannot do, before there is a folder.
            deepspeed_config(chosen, settings.zero_stage, choice.precision)
            _make_folder(settings, mixture, model_config, ranks.world_size, storage_options)
            if choice.message:
                say(choice.message)
            warning = warn_of_slow_bf16(device, choice.precision, settings.optimizer.muon_precision)
            if warning:
                say(warning)
    settings = with_choice(settings, ranks.from_first(choice))
    copy_run(folder, store, ranks)
    left_out = _find_left_out(settings, folder, mixture, ranks)
    with together(ranks):
        settings = follow_masking(settings, masking_of_trunk(folder))
    return _Prepared(
        settings=settings,
        storage_options=storage_options,
        mixture=mixture,
        model_config=model_config,
        wait_policy=wait_policy,
        folder=folder,
        saved=RunCheckpoints(folder, store, ranks, settings.checkpoint.skip_damaged, say),
        left_out=left_out,
    )


def _find_left_out(
    settings: PretrainSettings, folder: RunFolder, mixture: Mixture, ranks: Ranks
) -> LeftOutDocuments | None:
    """Returns the documents that the run leaves out, or None if there are none.

    All ranks call this together. In finished datasets rank 0 looks for the instances of these
    documents, and sends what it finds to all ranks. In datasets that are still being built, every
    rank looks for the instances itself, whenever a further pass appears.
    """
    found: LeftOutDocuments | None = None
    with together(ranks):
        if ranks.rank == 0:
            documents = folder.read_left_out()
            if documents:
                found = LeftOutDocuments(documents, settings.cache_dir)
                if not settings.follow:
                    lengths = [phase.seq_len for phase in settings.phases]
                    found = found.look_into(mixture, lengths)
    left_out: LeftOutDocuments | None = ranks.from_first(found)
    return left_out


def decide_precision(
    settings: PretrainSettings, device: Device, storage_options: Mapping[str, Any] | None
) -> Choice:
    """Decides in which precision a run trains, and whether its model is compiled.

    A run that continues, or that goes on from the run that `continue_from` names, keeps what was
    chosen at its beginning if the settings do not say otherwise. `choose_precision` has the rule.
    Only rank 0 calls this function, because other ranks may not see the run's folder.

    Args:
        settings: The settings of the run.
        device: What all ranks' devices can do.
        storage_options: Options of the filesystem of the run that `continue_from` names.
    """
    begun: dict[str, Any] | None = None
    folder = RunFolder(Path(settings.output))
    if folder.facts.is_file() and folder.config.is_file():
        begun = folder.read_config()
    elif settings.continue_from is not None:
        store, names = find_run(settings.continue_from, storage_options)
        with store.opened(names[-1], [STATE]) as (trunk, _):
            begun = trunk.read_config()
    stage = settings.zero_stage
    return choose_precision(device, stage, settings.precision, settings.compile, begun)


def with_choice(settings: PretrainSettings, choice: Choice) -> PretrainSettings:
    """Returns the settings with the precision and the compilation that were chosen."""
    return dataclasses.replace(settings, precision=choice.precision, compile=choice.is_compiled)


def precision_of(settings: PretrainSettings) -> Precision:
    """Returns the precision of a run; `decide_precision` must have decided it."""
    assert settings.precision is not None, "decide_precision is called first"
    return settings.precision


def _make_folder(
    settings: PretrainSettings,
    mixture: Mixture,
    model_config: BertConfig,
    world_size: int,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Makes the folder of a new run, or checks that the run in it may be continued; on rank 0 only.

    All checks come first, so that a mistake leaves no folder behind.
    """
    beginning = check_beginning(settings, mixture, storage_options, WaitPolicy())
    prepare_run(
        beginning.settings,
        mixture,
        model_config,
        world_size,
        beginning.weights,
        beginning.trunk.facts,
        beginning.left_out,
    )


def check_beginning(
    settings: PretrainSettings,
    mixture: Mixture,
    storage_options: Mapping[str, Any] | None,
    wait_policy: WaitPolicy,
) -> _Beginning:
    """Finds what a run begins with, and checks that it fits the settings and the datasets.

    Nothing is written in the run's folder. Only rank 0 calls this function, because other ranks may
    not see that folder.

    - Weights that a new run starts from (`init_from`) are downloaded if need be.
    - A run from whose checkpoint a new run starts (`continue_from`) must exist, and must fit the
      settings and the datasets.
    - Documents that a new run leaves out must be in the datasets, and the run that it continues
      from must not have read them. They must not be in all instances of a pass. A run that
      continues must leave out the same documents as before.

    Args:
        settings: The settings of the run, with steps instead of epochs.
        mixture: The datasets, at least one.
        storage_options: Options of the filesystem of the run that `continue_from` names.
        wait_policy: How long to wait for passes that are being built.

    Raises:
        ValueError: Something does not fit.
        FileNotFoundError: There is no such run, checkpoint or list of documents.
    """
    folder = RunFolder(Path(settings.output))
    is_new = not folder.facts.is_file()
    weights: str | None = None
    trunk = _Trunk()
    if is_new and settings.init_from is not None:
        weights = resolve_model(settings.init_from)
    elif is_new and settings.continue_from is not None:
        trunk = find_trunk(settings, mixture, storage_options)
    settings = follow_masking(settings, masking_of_trunk(folder, trunk.facts))
    if is_new:
        left_out = choose_left_out(settings, trunk.left_out, may_grow=True)
        _check_left_out(settings, left_out, trunk, mixture, wait_policy)
    else:
        left_out = choose_left_out(settings, folder.read_left_out(), may_grow=False)
    return _Beginning(settings, weights, trunk, left_out)


def _check_left_out(
    settings: PretrainSettings,
    left_out: tuple[int, ...],
    trunk: _Trunk,
    mixture: Mixture,
    wait_policy: WaitPolicy,
) -> None:
    """Checks the documents that a new run leaves out.

    Args:
        settings: The settings of the run. If its datasets are still being built (`follow`), their
            documents are not known, and only the last check of those below is made.
        left_out: The documents that the run leaves out, by the first 64 bits of their ids.
        trunk: What the run takes over from its trunk.
        mixture: The datasets.
        wait_policy: How long to wait for passes that are being built.

    Raises:
        ValueError: A document is in none of the datasets, all instances of a pass would be left
            out, or the trunk has read an instance of one of the documents.
    """
    if left_out != trunk.left_out and not settings.follow:
        datasets = [source.dataset for source in mixture]
        refuse_unknown(datasets, left_out, str(settings.leave_out), settings.cache_dir)
    if left_out:
        documents = LeftOutDocuments(left_out, settings.cache_dir)
        if not settings.follow:
            # It refuses a list that leaves nothing of a pass, of any phase.
            lengths = [phase.seq_len for phase in settings.phases]
            documents = documents.look_into(mixture, lengths)
        leave_out(trunk.position, documents, mixture, wait_policy)  # only its errors matter here


def choose_left_out(
    settings: PretrainSettings, kept: tuple[int, ...], *, may_grow: bool
) -> tuple[int, ...]:
    """Returns the documents that a run leaves out, by the first 64 bits of their ids.

    If the settings have no `leave_out`, these are the `kept` documents. If they have one, they are
    the documents in that file. The file must list exactly the `kept` documents; with `may_grow`, it
    may list further ones after these. If the file is missing on this machine, the `kept` documents
    are returned, unless there are none.

    Args:
        settings: The settings of the run.
        kept: The documents that the run leaves out so far, or that the run leaves out from which it
            goes on.
        may_grow: Whether the file may list further documents after the `kept` ones.

    Raises:
        FileNotFoundError: The file is missing, and `kept` is empty.
        ValueError: The file is malformed, or lists other documents.
    """
    if settings.leave_out is None:
        return kept
    try:
        options = parse_storage_options(settings.storage_options)
        given = read_document_list(settings.leave_out, options)
    except FileNotFoundError:
        if not kept:
            raise
        return kept  # the run's own copy serves on a machine that lacks the file
    if given == kept or (may_grow and given[: len(kept)] == kept):
        return given
    if may_grow:
        raise ValueError(
            f"leave_out: {settings.leave_out} does not begin with the {len(kept):,} document(s)"
            f" that {settings.continue_from} leaves out, in their order; give that list, with"
            " further documents at its end"
        )
    raise ValueError(
        f"leave_out: {settings.output} was begun with a list of {len(kept):,} document(s), and"
        f" {settings.leave_out} is another one, of {len(given):,}; leave the flag out to continue,"
        " or `python -m trainer forget` makes another run without further documents"
    )


def _find_start(prepared: _Prepared) -> _Start:
    """Returns the checkpoint and the position at which this launch of the run begins.

    All ranks call this together.
    """
    settings = prepared.settings
    checkpoint = choose_checkpoint(settings, prepared.saved, prepared.storage_options)
    position = Position()
    if checkpoint is not None:
        with together(prepared.saved.ranks):
            position = find_position(settings, checkpoint)
            refuse_consumed(settings, position)
            position = leave_out(
                position, prepared.left_out, prepared.mixture, prepared.wait_policy
            )
    return _Start(checkpoint, position)


def leave_out(
    position: Position,
    documents: LeftOutDocuments | None,
    mixture: Mixture,
    wait_policy: WaitPolicy,
) -> Position:
    """Returns a position whose streams leave documents out from there on.

    Args:
        position: The position of a run.
        documents: The documents; None if there are none.
        mixture: The datasets.
        wait_policy: How long to wait for passes that are being built.

    Raises:
        ValueError: A stream has already read an instance of one of the documents. Or a stream
            leaves other documents out, with which the list of `documents` does not begin.
    """
    streams = {}
    for seq_len, plain in position.streams.items():
        state = parse_state(plain)
        if documents is not None or state.left_out is not None:
            passes = KnownPasses(mixture, state.split, state.seq_len, wait_policy, documents)
            passes.wait_for(state.position)
            state = passes.leave_out(state)
        streams[seq_len] = state.to_dict()
    return dataclasses.replace(position, streams=streams)


def _start_training(
    prepared: _Prepared, start: _Start, chosen: dict[str, Any], progress: Progress
) -> _Trained:
    """Builds the model, its optimizer and DeepSpeed's engine, and loads the checkpoint into them.

    All ranks call this together.
    """
    settings = prepared.settings
    ranks = prepared.saved.ranks
    model = build_model(prepared.model_config, settings.seed)
    with together(ranks):
        for line in prepare_model(model, settings, start.checkpoint, prepared.folder.path / VOCAB):
            progress.say(line)
    optimizer = build_optimizer(model, settings.optimizer)
    deepspeed = deepspeed_config(chosen, settings.zero_stage, precision_of(settings))
    engine = start_engine(model, optimizer, deepspeed, ranks)
    if start.checkpoint is not None:
        load_checkpoint(start.checkpoint, engine, optimizer, ranks)
        progress.say(f"{prepared.folder.path}: continuing after step {start.position.step}")
    return _Trained(optimizer, engine)


def open_data(
    entries: Sequence[str],
    options: Mapping[str, Any] | None,
    wait_policy: WaitPolicy | None,
    ranks: Ranks,
) -> Mixture:
    """Opens the datasets; all ranks call this together.

    Rank 0 reads the tables of finished datasets for all ranks. If builds are followed, every rank
    opens the datasets itself, as it has to look for new passes.

    Args:
        entries: One `[NAME=]URL[:WEIGHT]` per dataset.
        options: Options of the datasets' filesystems.
        wait_policy: How long to wait for builds; None if they are not followed.
        ranks: All ranks.
    """
    mixture: Mixture = ()
    with together(ranks):
        if ranks.rank == 0 or wait_policy:
            mixture = open_mixture(entries, options, wait_policy)
        opened = () if wait_policy else opened_mixture(mixture)
    if wait_policy:
        return mixture
    opened = ranks.from_first(opened)
    return mixture or open_mixture_again(opened, options)  # rank 0 has its mixture already


def read_position(checkpoint: Path) -> Position:
    """Returns how far a run had come at a checkpoint."""
    state = read_state(checkpoint)
    names = [column.name for column in dataclasses.fields(Position)]
    return Position(**{name: state[name] for name in names})


def find_position(settings: PretrainSettings, checkpoint: Path) -> Position:
    """Returns how far a run has come at a checkpoint, counted in the run's own phases.

    The checkpoint may be that of the trunk, the run that `continue_from` names. The trunk can have
    other phases, so its position is then converted by `place_position`.
    """
    position = read_position(checkpoint)
    facts = RunFolder(Path(settings.output)).read_facts() if settings.continue_from else {}
    is_trunk = facts.get("trunk", {}).get("step") == position.step
    return place_position(position, settings.phases) if is_trunk else position


def choose_checkpoint(
    settings: PretrainSettings, saved: RunCheckpoints, options: Mapping[str, Any] | None
) -> Path | None:
    """Returns the checkpoint to load, or None at the start of a run; all ranks call it together.

    It is the run's newest checkpoint. If the run has none yet and goes on from another run, it is
    that run's checkpoint, which is copied to this node.

    Args:
        settings: The settings of the run.
        saved: The run's checkpoints.
        options: Options of the filesystem of the other run.

    Returns:
        The folder of the checkpoint, on a disk that this node sees.

    Raises:
        FileNotFoundError: The other run, or its checkpoint, is not there any more.
        ValueError: A checkpoint is damaged, or one that was saved is missing.
    """
    newest = saved.choose()
    if newest is not None or settings.continue_from is None:
        return newest
    with together(saved.ranks):
        step = saved.run.read_facts()["trunk"]["step"]
        trunk_name, _ = split_step(settings.continue_from)
        trunk_store, _ = find_run(f"{trunk_name}@{step}", options)
    of_trunk = dataclasses.replace(saved, store=trunk_store, skip_damaged=False)
    return of_trunk.choose(before=step + 1)


def find_trunk(
    settings: PretrainSettings, mixture: Mixture, options: Mapping[str, Any] | None
) -> "_Trunk":
    """Finds the trunk, the run that `continue_from` names, and checks that the new run fits it.

    Args:
        settings: The settings of the new run.
        mixture: The datasets of the new run.
        options: Options of the trunk's filesystem.

    Returns:
        What the new run takes over from the trunk.

    Raises:
        FileNotFoundError: There is no such run or checkpoint.
        ValueError: The new run does not fit the trunk.
    """
    store, names = find_run(settings.continue_from or "", options)
    with store.opened(names[-1], [STATE]) as (run, checkpoint):
        position = place_position(read_position(checkpoint), settings.phases)
        masking = masking_of(run)
        check_trunk(run, follow_masking(settings, masking), mixture)
        facts = run.read_facts()
        left_out = run.read_left_out()
    about_trunk = {
        "run": store.url,
        "step": position.step,
        "root_hashes": [dataset["root_hash"] for dataset in facts["datasets"]],
        "id": facts["id"],
    }
    if "@" in masking:  # the share moves, over a number of steps that the new run must keep
        about_trunk["masking"] = masking
    inherited = {key: facts[key] for key in ("base_model", "init_from_revision") if key in facts}
    return _Trunk(inherited | {"trunk": about_trunk}, left_out, position)


def masking_of_trunk(folder: RunFolder, found: Mapping[str, Any] | None = None) -> str | None:
    """Returns the masking that a run takes over from its trunk, the run that `continue_from` names.

    Args:
        folder: The run's folder.
        found: `_Trunk.facts` of a new run, whose folder does not hold a run.json yet. If it is None
            or empty, the folder's run.json is read, if there is one.

    Returns:
        The trunk's masking with the steps over which its mask share moves, such as
        "0.3-0.15@1000000". None if there is no trunk, or if the trunk's mask share does not move.
    """
    facts = found or (folder.read_facts() if folder.facts.is_file() else {})
    masking: str | None = facts.get("trunk", {}).get("masking")
    return masking


def place_position(position: Position, phases: Sequence[Phase]) -> Position:
    """Returns the position at which a new run continues another run, which is called its trunk.

    The step and the number of instances are those of the trunk. The phase, and the step in the
    phase, are counted in the phases of the new run.

    Args:
        position: The position of the trunk's checkpoint, after `position.step` steps.
        phases: The phases of the new run, from its first step on. They include the steps that the
            trunk has made.

    Raises:
        ValueError: The first `position.step` steps of `phases` have more or fewer instances than
            the trunk has trained on, or `phases` has no steps after them.
    """
    phase_of_step = [index for index, phase in enumerate(phases) for _ in range(phase.steps)]
    made = phase_of_step[: position.step]
    instances = sum(phases[index].global_batch for index in made)
    if len(phase_of_step) <= position.step or instances != position.instances:
        raise ValueError(
            f"continue_from names a checkpoint of {position.step:,} steps with"
            f" {position.instances:,} instances; the first {len(made):,} steps of phases have"
            f" {instances:,}, and {len(phase_of_step) - len(made):,} follow. Phases begin with the"
            " steps and batches of the run gone on from, and have more"
        )
    phase = phase_of_step[position.step]
    phase_step = made.count(phase)
    return dataclasses.replace(position, phase=phase, phase_step=phase_step, phase_seconds=0.0)


def refuse_consumed(settings: PretrainSettings, position: Position) -> None:
    """Raises a ValueError if `skip` names positions that a stream has consumed already."""
    for seq_len, state in position.streams.items():
        parse_state(state).skipping(settings.skipped(*settings.phases_of(int(seq_len))))


def resolve_epochs(settings: PretrainSettings, mixture: Mixture) -> PretrainSettings:
    """Returns settings that ask for steps instead of epochs.

    The steps of all phases are multiplied by the same factor, so that together the phases make
    `settings.epochs` epochs. Settings without `epochs` are returned unchanged.

    Args:
        settings: The settings of a run.
        mixture: The datasets of the run.

    Raises:
        ValueError: The main dataset has no train instances of the length of a phase.
    """
    if settings.epochs is None:
        return settings
    pass_sizes = [instances_per_pass(mixture, phase.seq_len) for phase in settings.phases]
    phases = lengthen_phases(settings, pass_sizes)
    return dataclasses.replace(settings, phases=phases, epochs=None)


def prepare_model(
    model: BertForPreTraining, settings: PretrainSettings, checkpoint: Path | None, vocabulary: Path
) -> Iterator[str]:
    """Prepares a new model for training: freezes, loads and compiles it as the settings ask.

    It freezes the parts that the objective does not train. It loads the weights that `init_from`
    names, or, if a checkpoint will be loaded, that checkpoint's weights of the frozen parts. It is
    lazy: the model is ready when the iterator has ended.

    Args:
        model: The model, with initial weights.
        settings: The settings of the run.
        checkpoint: The checkpoint that will be loaded; None at the start of a run.
        vocabulary: The run's vocab.txt.

    Yields:
        Lines of output about the weights that `init_from` names.

    Raises:
        ValueError: The weights to start with, or the checkpoint, are those of another model.
    """
    freeze_unused(model, settings.objective)
    model.bert.recompute_layers = settings.activation_checkpointing
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    if checkpoint is not None and frozen:
        # The optimizer has no frozen parameters, so `load_checkpoint` will not fill them.
        weights = read_weights(checkpoint)
        lacking = ", ".join(sorted(frozen - weights.keys())[:3])
        if lacking:
            raise ValueError(f"{checkpoint} does not hold {lacking}; it is of another model")
        model.load_state_dict({name: weights[name].float() for name in frozen}, strict=False)
    elif checkpoint is None and settings.init_from is not None:
        options = parse_storage_options(settings.storage_options)
        folder = resolve_model(settings.init_from)
        yield from _start_from(folder, model, vocabulary, options)
    if settings.compile:
        compile_model(model)


def _start_from(
    folder: str,
    model: BertForPreTraining,
    vocabulary: Path,
    options: Mapping[str, Any] | None,
) -> Iterator[str]:
    """Loads the weights that a run starts from, and yields lines of output about them.

    Args:
        folder: The folder with the weights.
        model: The model to fill.
        vocabulary: The run's vocab.txt. It may have more pieces than the vocab.txt of the weights;
            the rows of the new pieces are then made from old ones.
        options: Options of the filesystem of a folder at a URL.
    """
    initial, num_new = read_fitting_weights(folder, model.config, str(vocabulary), options)
    missing = model.load_state_dict(initial.state, strict=False).missing_keys
    yield f"weights are those of {folder}"
    if num_new:
        begin = "each begins as the mean of the old pieces that it was cut into"
        yield f"  {num_new:,} pieces are new to it: {begin}"
    if missing:
        yield f"  it lacks {', '.join(sorted(missing))}, which begin as new"
    if initial.vocab is None:
        yield "  it has no vocab.txt: only the size says that its vocabulary is the dataset's"


def read_fitting_weights(
    folder: str, config: BertConfig, vocabulary: str, options: Mapping[str, Any] | None
) -> tuple[InitialWeights, int]:
    """Reads the weights that a run starts from, and checks that they fit its model and its text.

    Args:
        folder: The folder with the weights.
        config: The config of the run's model.
        vocabulary: Path or URL of the vocab.txt of the run or of its dataset. The tokenizer is in
            the same folder.
        options: Options of the filesystem of URLs.

    Returns:
        The weights, with rows for the pieces that are new in the run's vocabulary, and the number
        of these pieces.

    Raises:
        FileNotFoundError: The folder holds no model.
        ValueError: The model is damaged, or does not fit.
    """
    initial = read_initial_weights(folder, options)
    num_new = 0
    words, vocabulary_name = Folder.of_file(vocabulary, options)
    refuse_other_words(folder, words.url, options)
    if initial.vocab is not None:
        initial, num_new = extend_rows(initial, words.read(vocabulary_name), folder)
    _check_config(initial.config, config, folder)
    return initial, num_new


def _check_config(found: BertConfig, expected: BertConfig, folder: str) -> None:
    """Raises a ValueError that names the settings in which weights differ from the model.

    Args:
        found: The config of the weights.
        expected: The config of the model.
        folder: The folder of the weights, for the message.
    """
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
