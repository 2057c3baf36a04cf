"""What pretraining is worth: tasks learned from a pretrained model, and from three that lack some.

| variant       | begins with                           | trains                                  |
|---------------|---------------------------------------|-----------------------------------------|
| pretrained    | all weights of the model, a new head  | everything                              |
| random        | new weights of the same architecture  | everything                              |
| random-layers | its embeddings, new layers and pooler | everything                              |
| frozen        | all its weights, a new head           | pooler and head; for entities, a BiLSTM |

Everything but the weights is the same: files, order, batch size, epochs; but the BiLSTM (2 layers
of 768 over the last four layers) sees the words four times as often, for it begins with nothing and
its input is computed once. Each variant has the learning rate of a small grid that is best with a
seed of its own (SELECTION_SEED) on the validation file; then come the seeds that are reported,
which also draw the new weights: seed by seed, all tasks and variants of each, so that stopping
early leaves whole comparisons. A line of JSON per run goes to OUTPUT/runs.jsonl, from which a
killed command continues; the table so far is in OUTPUT/table.md.

    python -m scripts.bench.downstream --model HF_OR_RUN --data FOLDER --output FOLDER
    --tasks sst2 wnut17 --seeds 5
"""

import argparse
import dataclasses
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scripts.bench.downstream_data import BenchTask, list_tasks
from scripts.bench.measured import print_result
from scripts.checkout import make_parser
from trainer.finetune.batches import Recipe, shuffled_order
from trainer.finetune.prepare import Prepared, begin_model, prepare_data
from trainer.finetune.run import score_file
from trainer.finetune.settings import FinetuneSettings
from trainer.finetune.task import OwnModel
from trainer.finetune.tokens.features import LSTM_SIZE
from trainer.finetune.training import train_task
from trainer.inference.open_model import open_model
from trainer.process.ranks import Ranks, start_ranks, stop_ranks

VARIANTS = ("pretrained", "random", "random-layers", "frozen")
GRIDS = {"frozen": (1e-3, 3e-3, 1e-2)}
# For a model of two layers; for a published size give --learning_rates 2e-5 3e-5 5e-5.
FINETUNING_GRID = (3e-4, 1e-3, 3e-3)
SELECTION_SEED = 1_000


@dataclass(frozen=True)
class Bench:
    """What all runs share.

    Attributes:
        arguments: The command line's values.
        ranks: This process.
        log: The file with a row for each finished run.
        prepared: The encoded files of each task.
    """

    arguments: argparse.Namespace
    ranks: Ranks
    log: Path
    prepared: dict[str, Prepared]

    def finished(self) -> dict[str, dict[str, Any]]:
        """Returns the rows of the finished runs, by the JSON of what was run."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return {json.dumps(row["run"]): row for row in rows}


def main() -> None:
    """Makes the runs that are not finished, and prints the table."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    output = Path(arguments.output)
    tasks = list_tasks(Path(arguments.data), output / "data")
    ranks = start_ranks()
    rows: list[dict[str, Any]] = []
    try:
        bench = Bench(arguments, ranks, output / "runs.jsonl", {})
        for seed in range(arguments.seeds):  # a command that is stopped leaves whole comparisons
            for name in arguments.tasks:
                rows += run_seed(bench, tasks[name], seed)
                (output / "table.md").write_text(format_table(rows, arguments.variants))
    finally:
        stop_ranks()
    print(format_table(rows, arguments.variants))
    print_result(
        "downstream", vars(arguments), ("torch", "numpy"), runs=len(rows), results=summarize(rows)
    )


def parse_arguments() -> argparse.Namespace:
    """Returns the command line's values."""
    parser = make_parser(__doc__)
    names = ["sst2", "rte", "wnut17", "uner", "squad2", "squad11"]
    parser.add_argument("--model", required=True, help="a run, RUN@STEP or a model folder")
    parser.add_argument(
        "--data", required=True, help="folder with sst2/, rte/, ner_wnut17/, ner_uner_ewt/, squad/"
    )
    parser.add_argument("--output", required=True, help="folder for runs.jsonl and table.md")
    parser.add_argument("--tasks", nargs="+", choices=names, default=names)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--learning_rates", nargs="+", type=float, help="in place of the grids; one chooses nothing"
    )
    parser.add_argument(
        "--max_train",
        type=int,
        default=4_000,
        help="items to train on, drawn once for all variants",
    )
    parser.add_argument("--global_batch", type=int, default=32)
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--epochs", type=int, help="in place of each task's own")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def run_seed(bench: Bench, task: BenchTask, seed: int) -> list[dict[str, Any]]:
    """Makes the runs of a task with one seed, and returns a row for each variant.

    The learning rate is chosen first, with a seed that is used for nothing else.
    """
    found = []
    for variant in bench.arguments.variants:
        settings = bench_settings(bench.arguments, task, variant)
        key = f"{task.name} {settings.task}"
        if key not in bench.prepared:
            bench.prepared[key] = prepare_data(settings)
        prepared = bench.prepared[key]
        epochs = (bench.arguments.epochs or task.epochs) * (
            4 if isinstance(prepared.task, OwnModel) else 1
        )
        grid = bench.arguments.learning_rates or GRIDS.get(variant, FINETUNING_GRID)
        recipes = [
            Recipe(bench.arguments.global_batch, rate, epochs, SELECTION_SEED) for rate in grid
        ]
        tried = [
            run_once(bench, task, settings, prepared, variant, each)
            for each in recipes
            if len(grid) > 1
        ]
        best = max(tried, key=lambda row: row["score"])["run"]["peak_lr"] if tried else grid[0]
        recipe = Recipe(bench.arguments.global_batch, best, epochs, seed)
        found.append(run_once(bench, task, settings, prepared, variant, recipe))
    return found


def bench_settings(
    arguments: argparse.Namespace, task: BenchTask, variant: str
) -> FinetuneSettings:
    """Returns the settings that a variant of a task is fine-tuned with."""
    layers = last_layers(arguments.model)
    return FinetuneSettings(
        task="ner-features" if variant == "frozen" and task.task == "ner" else task.task,
        model=arguments.model,
        train=[str(task.train)],
        validation=[str(task.validation)],
        output=f"{arguments.output}/{task.name}",
        squad=task.squad,
        tokens=dataclasses.replace(task.tokens, feature_layers=layers),
        seq_len=arguments.seq_len,
        precision="fp32",
    )


def last_layers(model: str) -> str:
    """Returns the numbers of the last four layers of a model, or of all if it has fewer."""
    return ",".join(
        str(-layer) for layer in range(1, 1 + min(4, open_model(model).config.num_layers))
    )


def run_once(
    bench: Bench,
    task: BenchTask,
    settings: FinetuneSettings,
    prepared: Prepared,
    variant: str,
    recipe: Recipe,
) -> dict[str, Any]:
    """Returns the row of a run. A run that is not finished is made."""
    limits = {"max_train": bench.arguments.max_train, "seq_len": settings.seq_len}
    run = {
        "task": task.name,
        "variant": variant,
        "model": prepared.opened.where,
        **dataclasses.asdict(recipe),
        **limits,
    }
    run |= {"head": f"bilstm-{LSTM_SIZE}"} if isinstance(prepared.task, OwnModel) else {}
    if row := bench.finished().get(json.dumps(run)):
        return row
    began = time.monotonic()
    items = prepared.train_items
    chosen = [
        items[index] for index in shuffled_order(len(items), 0, 0)[: bench.arguments.max_train]
    ]
    model = begin(prepared, variant, recipe.seed)
    losses: list[float] = []
    engine = train_task(model, chosen, recipe, settings, bench.ranks, losses.append)
    metrics = score_file(engine.module, prepared.files["validation"][0], prepared, bench.ranks)
    engine.destroy()
    score = metrics[prepared.task.main_metric] / (100 if task.is_percent else 1)
    facts = {
        "items": len(chosen),
        "train_loss": statistics.fmean(losses[-len(losses) // recipe.epochs :]),
    }
    row = {
        "run": run,
        "metric": prepared.task.main_metric,
        "score": score,
        "metrics": metrics,
        **facts,
        "seconds": round(time.monotonic() - began, 1),
    }
    with bench.log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    result = f"{row['metric']} {score:.4f} in {row['seconds']:.0f} s"
    print(f"{task.name} {variant} {recipe.name}: {result}", flush=True)
    return row


def begin(prepared: Prepared, variant: str, seed: int) -> Any:
    """Returns the model that a variant trains; parameters that it does not train are frozen."""
    state = {name: value for name, value in prepared.opened.state.items() if keeps(variant, name)}
    model = begin_model(
        dataclasses.replace(
            prepared, opened=dataclasses.replace(prepared.opened, state=state), keeps_head=False
        ),
        seed,
    )
    for name, parameter in model.named_parameters():
        is_encoder = name.startswith("bert.") and not name.startswith("bert.pooler.")
        parameter.requires_grad_(variant != "frozen" or not is_encoder)
    return model


def keeps(variant: str, name: str) -> bool:
    """Returns whether a variant begins with the pretrained values of a parameter."""
    return variant in ("pretrained", "frozen") or (
        variant == "random-layers" and name.startswith("bert.embeddings.")
    )


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Returns the mean, its standard error and the number of seeds, by task and by variant."""
    scores: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        scores.setdefault(row["run"]["task"], {}).setdefault(row["run"]["variant"], []).append(
            row["score"]
        )
    return {
        task: {
            variant: {
                "mean": statistics.fmean(values),
                "standard_error": statistics.stdev(values) / math.sqrt(len(values))
                if values[1:]
                else math.nan,
                "seeds": len(values),
            }
            for variant, values in variants.items()
        }
        for task, variants in scores.items()
    }


def format_table(rows: Sequence[dict[str, Any]], variants: Sequence[str]) -> str:
    """Returns a table in Markdown: mean ± standard error of each task and variant.

    Beside a variant is by how many standard errors the pretrained model is better.
    """
    lines = [f"| task | metric | {' | '.join(variants)} |", "|---" * (len(variants) + 2) + "|"]
    metrics = {row["run"]["task"]: row["metric"] for row in rows}
    for task, found in summarize(rows).items():
        cells = [
            _format_cell(found[variant], found.get("pretrained"), variant) for variant in variants
        ]
        lines.append(f"| {task} | {metrics[task]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _format_cell(own: dict[str, float], best: dict[str, float] | None, variant: str) -> str:
    cell = f"{100 * own['mean']:.2f} ± {100 * own['standard_error']:.2f}"
    if best is None or variant == "pretrained":
        return cell
    error = math.hypot(own["standard_error"], best["standard_error"])
    return f"{cell} ({(best['mean'] - own['mean']) / error:+.1f} SE)" if error else cell


if __name__ == "__main__":
    main()
