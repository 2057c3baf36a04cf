"""`python -m trainer COMMAND`: what each command is called with. Heavy imports stay inside the functions."""

import json
from pathlib import Path

from pipeline.command_line import Command, run_program
from trainer.tool_settings import (
    DoctorSettings,
    ExportSettings,
    FillMaskSettings,
    PlanSettings,
    ReportSettings,
    StreamSettings,
)

DESCRIPTION = """\
Trains BERT on datasets made by `python -m pipeline build`. On several GPUs or nodes start it with DeepSpeed:
  deepspeed --num_gpus 8 --module trainer pretrain --config configs/pretrain/bert-base.yaml --data DIR --output RUN"""

COMMANDS = {
    "pretrain": Command(
        summary="train a model, or continue a run", settings="trainer.settings:PretrainSettings",
        function="trainer.pretrain:pretrain",
    ),
    "plan": Command(
        summary="what a run will take: hours, memory, bandwidth", settings="trainer.tool_settings:PlanSettings",
        function="trainer.cli:plan",
    ),
    "doctor": Command(
        summary="examine every rank of a job before it trains", settings="trainer.tool_settings:DoctorSettings",
        function="trainer.cli:doctor",
    ),
    "stream": Command(
        summary="show what every rank would read of the data, and how fast",
        settings="trainer.tool_settings:StreamSettings", function="trainer.cli:stream", positionals=("data",),
    ),
    "report": Command(
        summary="write the curves of one or several runs as a page",
        settings="trainer.tool_settings:ReportSettings", function="trainer.cli:report", positionals=("runs",),
    ),
    "export": Command(
        summary="write a run's newest checkpoint for Hugging Face or Google's BERT",
        settings="trainer.tool_settings:ExportSettings", function="trainer.cli:export", positionals=("run",),
    ),
    "fill-mask": Command(
        summary="see what an exported model puts in the place of [MASK]",
        settings="trainer.tool_settings:FillMaskSettings", function="trainer.cli:fill_mask",
        positionals=("model", "text"),
    ),
}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Runs the command that the arguments name; the exit code."""
    return run_program("python -m trainer", DESCRIPTION, COMMANDS, argv)


def doctor(settings: DoctorSettings, _remainder: object = None) -> int:
    """`python -m trainer doctor`, on every rank."""
    from trainer.doctor.examine import examine

    text, code = examine(settings)
    if text:
        print(text, flush=True)
    return code


def stream(settings: StreamSettings, _remainder: object = None) -> None:
    """`python -m trainer stream DATA ...`."""
    from trainer.stream_report import report_stream

    print(report_stream(settings))


def plan(settings: PlanSettings, _remainder: object = None) -> None:
    """`python -m trainer plan --config FILE --gpus 64 --gpu h200`."""
    from trainer.plan import describe_plan

    print("\n".join(describe_plan(settings)))


def report(settings: ReportSettings, _remainder: object = None) -> None:
    """`python -m trainer report RUN ...`."""
    from trainer.report.page import render_page
    from trainer.report.read import read_runs
    from trainer.run_folder import replace_file

    runs = read_runs(settings.runs)
    for run in runs:
        for problem in run.problems:
            print(f"{run.path}: {problem}")
    output = Path(settings.output) if settings.output else runs[0].path / "report.html"
    replace_file(output, render_page(runs).encode())
    print(f"{output}: {sum(len(run.train) for run in runs):,} steps of {len(runs)} run(s)")


def export(settings: ExportSettings, _remainder: object = None) -> None:
    """`python -m trainer export RUN --output DIR`."""
    from trainer.export_run import export_run

    print(json.dumps(export_run(settings)))


def fill_mask(settings: FillMaskSettings, _remainder: object = None) -> None:
    """`python -m trainer fill-mask DIR "The capital of France is [MASK]."`."""
    from trainer.fill_mask import fill_mask as fill
    from trainer.fill_mask import format_candidates, open_mask_filler

    filler = open_mask_filler(settings.model)
    print(format_candidates(fill(filler, settings.text, settings.top_k), filler.tokens_seen))
