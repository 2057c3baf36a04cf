"""Defines the commands of `python -m trainer`.

The function of a command takes the settings of the command. Its second argument, `_remainder`, is
not used: it would have the words after `--`, which only commands of `python -m pipeline` accept.

Modules that import torch are imported inside of functions, so that `--help` answers at once.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.command_line.program import Command, run_program
from pipeline.storage.terminal import say
from trainer.ask.settings import AskSettings
from trainer.inference.settings import (
    EvaluateSettings,
    ExportSettings,
    FeaturesSettings,
    FillMaskSettings,
)
from trainer.preflight.settings import DoctorSettings, PlanSettings

DESCRIPTION = """\
Trains BERT on datasets made by `python -m pipeline build`. On several GPUs start it with DeepSpeed:
  deepspeed --num_gpus 8 --module trainer pretrain \\
      --config configs/pretrain/bert-base.yaml --data DIR --output RUN"""

COMMANDS = {
    "pretrain": Command(
        "train a model, or continue a run", "trainer.settings:PretrainSettings",
        "trainer.pretrain.loop:pretrain", unwinds=False, local=("output", "cache_dir"),
        check="trainer.first_checks:check_pretrain",
    ),
    "forget": Command(
        "make a run again as if documents had been left out of it",
        "trainer.forget.settings:ForgetSettings", "trainer.forget.command:forget",
        positionals=("run",), unwinds=False, local=("output", "cache_dir"),
        check="trainer.first_checks:check_forget",
    ),
    "finetune": Command(
        "train a pretrained model on a task, over settings and seeds",
        "trainer.finetune.settings:FinetuneSettings", "trainer.finetune.run:finetune",
        unwinds=False, local=("output",), check="trainer.first_checks:check_finetune",
    ),
    "predict": Command(
        "write a fine-tuned model's predictions for the items of files",
        "trainer.finetune.settings:PredictSettings", "trainer.finetune.run:predict",
        unwinds=False, local=("output",), check="trainer.first_checks:check_predict",
    ),
    "plan": Command(
        "estimate a run's hours, memory and bandwidth",
        "trainer.preflight.settings:PlanSettings", "trainer.cli:plan", unused=("output",),
    ),
    "doctor": Command(
        "examine every rank of a job before it trains",
        "trainer.preflight.settings:DoctorSettings", "trainer.cli:doctor",
        unwinds=False, local=("output", "cache_dir"),
    ),
    "report": Command(
        "write the curves of one or several runs as a page", "trainer.cli:ReportSettings",
        "trainer.cli:report", positionals=("runs",), local=("output",),
    ),
    "ask": Command(
        "say what steps of a run read, which read a document, or if a certificate is right",
        "trainer.ask.settings:AskSettings", "trainer.cli:ask", positionals=("run",),
        local=("cache_dir",),
    ),
    "export": Command(
        "write a checkpoint of a run for Hugging Face or DeepSpeed",
        "trainer.inference.settings:ExportSettings", "trainer.cli:export", positionals=("run",),
        check="trainer.first_checks:check_export",
    ),
    "fill-mask": Command(
        "show the most likely words in the place of [MASK]",
        "trainer.inference.settings:FillMaskSettings", "trainer.cli:fill_mask",
        positionals=("texts",), check="trainer.first_checks:check_fill_mask",
    ),
    "evaluate": Command(
        "measure a model on a dataset, or on minimal pairs",
        "trainer.inference.settings:EvaluateSettings", "trainer.cli:evaluate",
        check="trainer.first_checks:check_evaluate",
    ),
    "features": Command(
        "write hidden states of a file's texts to Parquet",
        "trainer.inference.settings:FeaturesSettings", "trainer.cli:features",
        check="trainer.first_checks:check_features",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ReportSettings:
    """Writes a page with the curves of one or several runs, drawn over one another.

    Attributes:
        runs: Folders of runs, or the URLs that runs have as --checkpoint.url. A URL has the metrics
            up to the newest checkpoint only. Each run's curves have their own colour.
        output: File of the page. null means report.html in the first run's folder, which must then
            be on this machine.
        storage_options: Options of the filesystem of runs at URLs, as JSON or @FILE.
    """

    runs: list[str]
    output: str | None = None
    storage_options: str | None = None


def main(argv: list[str] | None = None) -> int:
    """Runs a command of `python -m trainer`, such as `["plan", "--config", "run.yaml"]`.

    Errors that a user can correct are not raised: they are printed as one line on stderr.

    Args:
        argv: The command and its flags; None takes the arguments of this process.

    Returns:
        The exit code: 0 if the command succeeded, and another number if it failed or was
        interrupted (docs/resilience.md).
    """
    return run_program("python -m trainer", DESCRIPTION, COMMANDS, argv)


def doctor(settings: DoctorSettings, _remainder: object = None) -> int:
    """Runs `python -m trainer doctor`, which every rank has to do at the same time.

    Rank 0 prints what was found on all ranks.

    Returns:
        The exit code: 0, or 1 on every rank if any rank is not fit for training.
    """
    from trainer.preflight.doctor import examine

    text, code = examine(settings)
    if text:
        say(text)
    return code


def plan(settings: PlanSettings, _remainder: object = None) -> None:
    """Runs `python -m trainer plan --config FILE --world_size 64 --gpu h200`."""
    from trainer.preflight.plan import describe_plan

    say("\n".join(describe_plan(settings)))


def report(settings: ReportSettings, _remainder: object = None) -> None:
    """Runs `python -m trainer report RUN ...`.

    Raises:
        ValueError: The first run is at a URL, and --output does not say where the page goes.
    """
    from pipeline.storage.folder import parse_storage_options
    from pipeline.storage.local import replace_file
    from trainer.watch.fetch_run import fetched_runs
    from trainer.watch.page import render_page
    from trainer.watch.read_run import read_runs

    if settings.output is None and "://" in settings.runs[0]:
        found = f"{settings.runs[0]} is no folder of this machine"
        raise ValueError(f"{found}: --output says which file the page goes to")
    options = parse_storage_options(settings.storage_options)
    with fetched_runs(settings.runs, options) as (folders, shown):
        runs = read_runs(folders)
        for run in runs:
            for problem in run.problems:
                say(shown(f"{run.path}: {problem}"))
        output = Path(settings.output) if settings.output else runs[0].path / "report.html"
        replace_file(output, render_page(runs).encode())
    say(f"{output}: {sum(len(run.train) for run in runs):,} steps of {len(runs)} run(s)")


def ask(settings: AskSettings, _remainder: object = None) -> int:
    """Runs `python -m trainer ask RUN --step 1200-1210`, or with another question.

    Returns:
        The exit code: 1 if a certificate was not found to be right, otherwise 0.
    """
    if settings.certificate is not None:
        from trainer.replay.check_certificate import check_certificate

        return check_certificate(settings)
    if settings.blame is not None:
        from trainer.replay.blame_step import blame_step

        blame_step(settings)
        return 0
    from trainer.ask.command import answer

    answer(settings)
    return 0


def export(settings: ExportSettings, _remainder: object = None) -> None:
    """Runs `python -m trainer export RUN --output DIR`, of a run or of an exported model."""
    from pipeline.storage.folder import Folder
    from pipeline.storage.secret_values import hide_in
    from trainer.conversion.export import model_files, write_export
    from trainer.conversion.huggingface import OPTIONAL_PREFIXES
    from trainer.conversion.names import CONFIG
    from trainer.inference.open_model import open_model, open_run_model

    options = settings.filesystem_options()
    is_model = Folder(settings.run, options).exists(CONFIG)
    opened = (
        open_model(settings.run, options) if is_model else open_run_model(settings.run, options)
    )
    if opened.head is None:
        opened.check_has(OPTIONAL_PREFIXES, "the heads of pretraining, which an export has")
    files = model_files(
        opened.state,
        opened.config,
        opened.vocab or b"",
        head=opened.head,
        rule=opened.word_rule,
        provenance=opened.provenance,
    )
    if settings.output_format == "deepspeed-universal":
        files = _universal_files(opened, files)
    write_export(files, settings.output, options)
    facts = {"exported": settings.output, "checkpoint": opened.where}
    say(json.dumps(hide_in(facts | {"step": opened.provenance.get("steps")})))


def _universal_files(opened: Any, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the files of an export for DeepSpeed: a universal checkpoint in place of the weights.

    Args:
        opened: The model, opened from a checkpoint of a run.
        files: The files of an export for Hugging Face, by name. All of them but the weights become
            part of the result.

    Raises:
        ValueError: The model was not opened from a checkpoint on this machine, or its optimizer was
            Muon, which keeps no second moments as DeepSpeed's optimizers need them.
    """
    from trainer.checkpoints.files import COMMITTED, read_state
    from trainer.checkpoints.read import read_states
    from trainer.conversion.names import WEIGHTS
    from trainer.conversion.universal import universal_files

    checkpoint = Path(opened.where)
    if not (checkpoint / COMMITTED).is_file():
        cure = "give a run's folder on this machine"
        raise ValueError(f"{checkpoint} has no optimizer's state: {cure}")
    if opened.provenance.get("training", {}).get("optimizer") == "muon":
        cure = "give --output_format huggingface"
        raise ValueError(f"{checkpoint} is Muon's, which keeps no second moments: {cure}")
    state = read_state(checkpoint)
    converted = universal_files(
        read_states(checkpoint), opened.config, state["step"], state["num_updates"]
    )
    other_files = {name: data for name, data in files.items() if name != WEIGHTS}
    return converted | other_files


def fill_mask(settings: FillMaskSettings, _remainder: object = None) -> None:
    """Runs `python -m trainer fill-mask --model DIR "The capital of France is [MASK]."`."""
    from trainer.inference.ask import fill_mask as fill
    from trainer.inference.ask import format_candidates
    from trainer.inference.open_model import open_model

    opened = open_model(settings.model, settings.filesystem_options())
    candidates = fill(opened, settings.texts, settings.top_k)
    by_text = dict(zip(settings.texts, candidates, strict=True))
    say(format_candidates(by_text, opened.provenance.get("tokens_seen")))


def features(settings: FeaturesSettings, _remainder: object = None) -> None:
    """Runs `python -m trainer features --model DIR --input FILE --output FILE`."""
    from pipeline.storage.secret_values import hide_in
    from trainer.inference.features.job import write_features

    say(json.dumps(hide_in({"output": settings.output, **write_features(settings)})))


def evaluate(settings: EvaluateSettings, _remainder: object = None) -> None:
    """Runs `python -m trainer evaluate --model DIR`, with --data DATASET or --pairs FILE."""
    from pipeline.storage.folder import Folder
    from pipeline.storage.secret_values import hide_in
    from trainer.runs.json_files import to_json

    if settings.pairs is not None:
        results = _evaluate_pairs(settings, settings.pairs)
    else:
        assert settings.data is not None, "the settings have a dataset or pairs"
        results = _evaluate_dataset(settings, settings.data)
    if settings.output:
        folder, name = Folder.of_file(settings.output, settings.filesystem_options())
        folder.write(name, to_json(hide_in(results)))


def _evaluate_dataset(settings: EvaluateSettings, data: str) -> dict[str, Any]:
    """Measures a model on a dataset, prints the numbers, and returns them for --output.

    Args:
        settings: The settings of the command.
        data: The dataset, a folder or a URL.

    Returns:
        A dict for a JSON file with the keys "model", "data" and "split". Under "lengths" is a list
        with one dict of measurements for each length, which has the length as "seq_len".
    """
    from pipeline.shards.dataset import open_dataset
    from trainer.inference.evaluate import choose_lengths, format_evaluation
    from trainer.inference.evaluate import evaluate as measure
    from trainer.inference.open_model import open_model
    from trainer.process.ranks import choose_device

    options = settings.filesystem_options()
    dataset = open_dataset(data, options)
    opened = open_model(settings.model, options)
    device = choose_device()
    results = []
    for seq_len in choose_lengths(opened, dataset, settings.split, settings.seq_len):
        numbers = measure(
            opened,
            dataset,
            settings.split,
            seq_len,
            num_instances=settings.num_instances,
            device=device,
            micro_tokens=settings.micro_tokens,
        )
        results.append({"seq_len": seq_len, **numbers})
        place = f"{opened.where} on {dataset.url}, {settings.split}, {seq_len} tokens"
        say(f"{place}\n{format_evaluation(numbers)}")
    return {
        "model": opened.where,
        "data": dataset.url,
        "split": settings.split,
        "lengths": results,
    }


def _evaluate_pairs(settings: EvaluateSettings, name: str) -> dict[str, Any]:
    """Measures a model on minimal pairs, prints the accuracies, and returns them for --output.

    Args:
        settings: The settings of the command.
        name: The file of pairs, or a folder or glob of such files.

    Returns:
        A dict for a JSON file with the keys "model", "pairs", "score" (the kind of score) and
        "equal_pairs" (the number of pairs whose sentences are equal), and those of the accuracies.
    """
    from trainer.inference.evaluate_pairs import evaluate_pairs
    from trainer.inference.open_model import open_model
    from trainer.minimal_pairs.accuracy import format_accuracies
    from trainer.minimal_pairs.read import EQUAL_PAIR, read_pairs
    from trainer.process.ranks import choose_device

    options = settings.filesystem_options()
    pair_set = read_pairs(name, settings.group_by, settings.pairs_limit, options)
    opened = open_model(settings.model, options)
    score = "left-to-right" if opened.config.is_causal else settings.pll
    say(f"{opened.where} on {name}, {score} scores")
    accuracies = evaluate_pairs(
        opened,
        pair_set,
        pll=settings.pll,
        micro_tokens=settings.micro_tokens,
        device=choose_device(),
    )
    say(format_accuracies(accuracies))
    for pair in pair_set.equal_pairs:
        say(f"{pair.place}: {EQUAL_PAIR}")
    others = accuracies.ties - len(pair_set.equal_pairs)
    if others > 0:
        cause = "for example because the tokenizer reads both sentences alike"
        say(f"also wrong: {others:,} pair(s) with equal scores, {cause}")
    return {
        "model": opened.where,
        "pairs": name,
        "score": score,
        "equal_pairs": len(pair_set.equal_pairs),
        **accuracies.to_dict(),
    }
