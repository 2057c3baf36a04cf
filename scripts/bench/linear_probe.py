"""What a linear classifier reads of SST-2 from frozen states: the embeddings and every layer, [CLS] or the mean.

The states are standardized by the training sentences; the classifier is a logistic regression,
fitted to its end with an L2 penalty. `--random` asks the same of new weights of the architecture,
as a floor.

    python -m scripts.bench.linear_probe --model HF_OR_RUN --data FOLDER --sentences 4000
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scripts.bench.measured import print_result
from trainer.finetune.batches import shuffled_order
from trainer.finetune.table_files import Record, read_table
from trainer.inference.features.extract import FeatureExtractor, plain_texts
from trainer.inference.features.settings import Rows
from trainer.inference.open_model import OpenedModel, open_model
from trainer.model.bert import BertForPreTraining

PENALTY = 1e-3
PLACES: tuple[Rows, ...] = ("cls", "mean")


def main() -> None:
    """Prints one line of JSON: the accuracy on the dev file by place and layer."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--model", required=True, help="a run, RUN@STEP or a model folder")
    parser.add_argument("--data", required=True, help="folder with sst2/")
    parser.add_argument(
        "--sentences",
        type=int,
        default=4_000,
        help="of the train file, drawn as downstream.py draws",
    )
    parser.add_argument("--random", action="store_true", help="new weights in place of the model's")
    parser.add_argument("--seed", type=int, default=0, help="of new weights")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    opened = open_model(arguments.model)
    if arguments.random:
        torch.manual_seed(arguments.seed)
        opened = dataclasses.replace(opened, state=BertForPreTraining(opened.config).state_dict())
    folder = Path(arguments.data, "sst2")
    train, dev = (
        read_table(str(folder / name), ["sentence", "label"])
        for name in ("train.tsv.zst", "dev.tsv")
    )
    train = [train[index] for index in shuffled_order(len(train), 0, 0)[: arguments.sentences]]
    accuracy = {}
    for rows in PLACES:
        states, dev_states = (_states(opened, records, rows) for records in (train, dev))
        for layer in range(states.shape[1]):
            weights = _fit(states[:, layer], _labels(train))
            accuracy[f"{rows}, layer {layer}"] = _accuracy(
                weights, dev_states[:, layer], _labels(dev)
            )
    print_result("linear_probe", vars(arguments), ("torch", "numpy"), accuracy=accuracy)


def _states(opened: OpenedModel, records: list[Record], rows: Rows) -> Tensor:
    """[sentences, layers + 1, width] float32, from the embeddings up."""
    extractor = FeatureExtractor(opened, layers="all", rows=rows)
    found: list[Any] = [None] * len(records)
    texts = plain_texts([record.fields["sentence"] for record in records])
    for each in extractor.iterate(map(extractor.encode, texts)):
        for text, vector in zip(each.texts, each.vectors, strict=True):
            found[text.origin.number] = vector
    return torch.from_numpy(np.stack(found))


def _labels(records: list[Record]) -> Tensor:
    return torch.tensor([float(record.fields["label"]) for record in records])


def _fit(states: Tensor, labels: Tensor) -> Tensor:
    """Weights [width + 1] of a logistic regression over states as they are; the last one is the bias."""
    mean, deviation = states.mean(0), states.std(0) + 1e-6
    scaled = (states - mean) / deviation
    weights = torch.zeros(states.shape[1] + 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200)

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = scaled @ weights[:-1] + weights[-1]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        loss = loss + PENALTY * weights[:-1].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    slope = weights.detach()[:-1] / deviation
    return torch.cat([slope, weights.detach()[-1:] - slope @ mean])


def _accuracy(weights: Tensor, states: Tensor, labels: Tensor) -> float:
    return float(((states @ weights[:-1] + weights[-1] > 0) == (labels > 0)).float().mean())


if __name__ == "__main__":
    main()
