"""Lies about what WriteTokens and WriteToWebDataset have written: told where it is listed.

Each lie changes the list of token parts, or of shards, between Beam's ToList and what reads it.
A pipeline must end with an error, and leave nothing that looks whole.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.transforms import WriteTokens, WriteToWebDataset

ToList = beam.combiners.ToList
SHARDS = "shards"
PARTS = "parts"
_NO_PART = f"{'0' * 32}-00000-last.json"
_COMPLETE = {PARTS: "tokens/parts.json", SHARDS: "manifest.json"}
_IN_MEMORY = ["--runner=FnApiRunner", "--direct_num_workers=1", "--direct_running_mode=in_memory"]


@dataclass(frozen=True)
class ListLie:
    """What a runner lists of what was written, out of what it should."""

    name: str
    writer: str
    tell: Callable[[list[Any]], list[Any]]
    end: Literal["refused", "unharmed"] = "refused"


def _changed_row(column: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    """Makes a lie about one value of the first row.

    The values of a shard are its name, samples, bytes, sha256 and seal. Those of a token part are
    its record, the documents that were read, documents, tokens and seal.
    """
    return lambda rows: [(*rows[0][:column], value, *rows[0][column + 1 :]), *rows[1:]]


def _exchanged_rows(column: int) -> Callable[[list[Any]], list[Any]]:
    """Makes a lie that exchanges a value of the first and the last shard, which is smaller."""

    def tell(rows: list[Any]) -> list[Any]:
        one, *rest, other = rows
        first = (*one[:column], other[column], *one[column + 1 :])
        second = (*other[:column], one[column], *other[column + 1 :])
        return [first, second, *rest]

    return tell


LIST_LIES = (
    # Every part holds one document.
    ListLie("a part is lost", PARTS, lambda parts: parts[1:]),
    ListLie("every part is lost", PARTS, lambda _: []),
    ListLie("a part is listed twice", PARTS, lambda parts: [parts[0], *parts]),
    ListLie(
        "a part is lost, another of as many documents is listed twice",
        PARTS,
        lambda parts: [parts[1], *parts[1:]],
    ),
    ListLie(
        "half of the parts are lost, the others are listed twice",
        PARTS,
        lambda parts: 2 * parts[: len(parts) // 2],
    ),
    ListLie("a part has another name", PARTS, _changed_row(0, _NO_PART)),
    ListLie("a part has other documents", PARTS, _changed_row(2, 2)),
    ListLie("a part has other tokens", PARTS, _changed_row(3, 0)),
    ListLie("a part has another seal", PARTS, _changed_row(4, "0" * 32)),
    ListLie("parts are listed in another order", PARTS, lambda parts: parts[::-1], "unharmed"),
    ListLie("a shard is lost", SHARDS, lambda rows: rows[1:]),
    ListLie("a shard is listed twice", SHARDS, lambda rows: [rows[0], *rows]),
    ListLie("a shard is lost, another is listed twice", SHARDS, lambda rows: [rows[1], *rows[1:]]),
    ListLie("a shard has another name", SHARDS, _changed_row(0, "shard-000099.tar")),
    ListLie("a shard has another count", SHARDS, _changed_row(1, 1)),
    ListLie("a shard has another size", SHARDS, _changed_row(2, 10240 * 9)),
    ListLie("a shard has another sha256", SHARDS, _changed_row(3, "0" * 64)),
    ListLie("a shard has another seal", SHARDS, _changed_row(4, "0" * 32)),
    ListLie("two shards have each other's names", SHARDS, _exchanged_rows(0)),
    ListLie("two shards have each other's counts", SHARDS, _exchanged_rows(1)),
    ListLie("two shards have each other's sha256", SHARDS, _exchanged_rows(3)),
    ListLie("shards are listed in another order", SHARDS, lambda rows: rows[::-1], "unharmed"),
)


class LyingToList(beam.PTransform):  # type: ignore[misc]
    """ToList, whose list then passes through a lie."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def expand(self, elements: beam.PCollection) -> beam.PCollection:  # noqa: D102
        return elements | "Listed" >> ToList() | "Tell" >> beam.Map(tell_list, self._name)


def tell_list(elements: list[Any], name: str) -> list[Any]:
    """Returns a list, in a fixed order, after the lie of a name."""
    [lie] = [lie for lie in LIST_LIES if lie.name == name]
    return lie.tell(sorted(elements))


class ListLiar:
    """One honest output of each transform, and a pipeline for each lie."""

    def __init__(self, folder: Path, texts: list[str], vocab: Path) -> None:
        self._folder = folder
        self._texts = texts
        self._vocab = vocab
        self._honest = {}
        for writer in (PARTS, SHARDS):
            self._write(writer, folder / writer)
            self._honest[writer] = self._read(writer, folder / writer)

    def tell(self, lie: ListLie) -> tuple[str, str, float]:
        """Returns how a pipeline with one lie ended, what it said, and its seconds."""
        began = time.monotonic()
        folder = self._folder / lie.name
        beam.combiners.ToList = lambda: LyingToList(lie.name)
        said = ""
        try:
            self._write(lie.writer, folder)
        except Exception as error:  # noqa: BLE001 - whatever ends a pipeline
            said = str(error).splitlines()[0]
        finally:
            beam.combiners.ToList = ToList
        seconds = round(time.monotonic() - began, 2)
        is_complete = (folder / _COMPLETE[lie.writer]).exists()
        if said:
            return ("missed" if is_complete else "refused"), said, seconds
        is_honest = is_complete and self._read(lie.writer, folder) == self._honest[lie.writer]
        return ("unharmed" if is_honest else "missed"), "", seconds

    def _write(self, writer: str, folder: Path) -> None:
        with beam.Pipeline(options=PipelineOptions(_IN_MEMORY)) as pipeline:
            texts = pipeline | beam.Create(self._texts)
            if writer == PARTS:
                _ = texts | WriteTokens(folder, self._vocab, part_bytes=1024)
            else:
                samples = texts | beam.Map(lambda text: {"__key__": text[:40], "txt": text})
                _ = samples | WriteToWebDataset(folder, max_samples=9)

    def _read(self, writer: str, folder: Path) -> object:
        return json.loads((folder / _COMPLETE[writer]).read_text())
