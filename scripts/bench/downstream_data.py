"""The tasks of scripts/bench/downstream.py: their files, and how the only one at hand is cut.

| name    | train                                     | validation              | metric    |
|---------|-------------------------------------------|-------------------------|-----------|
| sst2    | GLUE's                                    | GLUE's dev              | accuracy  |
| rte     | rows of GLUE's train, cut by others       | theirs                  | accuracy  |
| wnut17  | the task's                                | the task's dev          | entity F1 |
| uner    | four fifths of the sentences of EWT's dev | the others              | entity F1 |
| squad2  | three quarters of 16 articles             | every fourth, by title  | F1        |
| squad11 | the same articles' answerable questions   | the same                | F1        |

A sentence of uner is held out where the first byte of the blake2b of its sent_id is divisible by 5.
"""

import io
import json
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import zstandard

from trainer.finetune.settings import SquadSettings, TokenSettings


@dataclass(frozen=True)
class BenchTask:
    """A task of the benchmark.

    Attributes:
        name: The name of the task in the results.
        task: The name that `finetune --task` takes.
        train: The file to train on.
        validation: The file to measure on.
        epochs: The number of epochs.
        squad: Settings of windows and answers.
        tokens: Settings of CoNLL files.
    """

    name: str
    task: str
    train: Path
    validation: Path
    epochs: int
    squad: SquadSettings = field(
        default_factory=lambda: SquadSettings(stride=48, max_query_pieces=32)
    )
    tokens: TokenSettings = field(default_factory=TokenSettings)

    @property
    def is_percent(self) -> bool:
        """Whether the task's metric is in percent, as SQuAD's program has it."""
        return self.task.startswith("squad")


def list_tasks(data: Path, work: Path) -> dict[str, BenchTask]:
    """Returns the tasks by name. Files that have to be cut in two are written to `work`."""
    uner = TokenSettings(token_column=1, tag_column=2)
    squad = data / "squad"
    tasks = [
        BenchTask("sst2", "sst2", data / "sst2/train.tsv.zst", data / "sst2/dev.tsv", 2),
        BenchTask("rte", "rte", data / "rte/train.tsv", data / "rte/dev.tsv", 4),
        BenchTask(
            "wnut17", "ner", data / "ner_wnut17/train.conll", data / "ner_wnut17/dev.conll", 5
        ),
        BenchTask(
            "uner",
            "ner",
            *cut_sentences(data / "ner_uner_ewt/en_ewt-ud-dev.iob2.zst", work),
            8,
            tokens=uner,
        ),
        BenchTask("squad2", "squad2", *cut_articles(squad / "squad_v2_half_dev.json.zst", work), 3),
        BenchTask(
            "squad11",
            "squad",
            *cut_articles(squad / "squad_v11_derived_half_dev.json.zst", work),
            3,
        ),
    ]
    return {task.name: task for task in tasks}


def cut_sentences(source: Path, work: Path) -> tuple[Path, Path]:
    """Cuts a CoNLL file by the ids of its sentences: one to train on, one to validate on."""
    cut: dict[bool, list[str]] = {False: [], True: []}
    for sentence in _read(source).strip().split("\n\n"):
        [name] = [line for line in sentence.split("\n") if line.startswith("# sent_id = ")]
        cut[is_held_out(name.removeprefix("# sent_id = "))].append(sentence)
    return _write(work, source, {split: "\n\n".join(cut[split]) + "\n" for split in cut})


def is_held_out(sentence_id: str) -> bool:
    """Returns whether a sentence is validated on: one of five is, by the hash of its id."""
    return blake2b(sentence_id.encode(), digest_size=1).digest()[0] % 5 == 0


def cut_articles(source: Path, work: Path) -> tuple[Path, Path]:
    """Cuts a SQuAD file in two: one to train on, one to validate on.

    The second has every fourth article, in the order of titles, from the first one.
    """
    content = json.loads(_read(source))
    held_out = set(sorted(article["title"] for article in content["data"])[::4])
    cut: dict[bool, list[Any]] = {False: [], True: []}
    for article in content["data"]:
        cut[article["title"] in held_out].append(article)
    parts = {split: json.dumps(content | {"data": data}) for split, data in cut.items()}
    return _write(work, source, parts)


def _read(source: Path) -> str:
    return (
        zstandard.ZstdDecompressor().stream_reader(io.BytesIO(source.read_bytes())).read().decode()
    )


def _write(work: Path, source: Path, contents: dict[bool, str]) -> tuple[Path, Path]:
    name, _, suffix = source.name.removesuffix(".zst").rpartition(".")
    paths = tuple(work / f"{name}.{split}.{suffix}" for split in ("train", "validation"))
    work.mkdir(parents=True, exist_ok=True)
    for path, content in zip(paths, (contents[False], contents[True]), strict=True):
        path.write_text(content, encoding="utf-8")
    return paths[0], paths[1]
