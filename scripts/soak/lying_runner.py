"""Builds one small corpus under a runner and a store that lie, and says which lies were found.

    python -m scripts.soak.lying_runner --output scripts/soak/results/DATE-lying-runner.json

Each lie (scripts/soak/lies.py) is told to one build, and must end as it says: the build ends with
an error, or builds anew what was wrong, or `verify` finds it. What is no lie, such as groups in
another order, must end as the honest build does. Lies of a runner are told between Beam's
GroupByKey and what reads its groups; those about WriteTokens and WriteToWebDataset
(scripts/soak/list_lies.py) between its ToList and what reads the list. A lie that ends in a dataset
of another root hash, and in none of these, was missed. Exit code 1 where one was missed or ended
otherwise.
"""

import contextlib
import io
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apache_beam as beam

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.jobs.exchange import cut_part
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset
from pipeline.stages import publish
from pipeline.stages.build_shards import choose_buckets
from pipeline.stages.build_tokens import read_store
from pipeline.storage.folder import Folder
from pipeline.tokens.held_out import choose_held_out
from pipeline.tokens.token_index import TokenParts
from scripts.checkout import describe_soak, make_parser, write_results
from scripts.soak.kills import WORDS
from scripts.soak.lies import RUNNER_LIES, STORE_LIES, WRITE_LIES, Group, Lie, RunnerLie, StoreLie
from scripts.soak.list_lies import LIST_LIES, ListLiar

NUM_DOCUMENTS = 240
NUM_LISTED = 40  # of the pipelines that write lists
GroupByKey = beam.GroupByKey
FLAGS = ["--passes", "2", "--seq_lens", "64", "--num_buckets", "4", "--workers", "1"]


@dataclass(frozen=True)
class Outcome:
    """What one lie came to; `end` is "missed" where nothing said that the dataset is another."""

    lie: str
    told_by: str
    exchange: str
    expected: str
    end: str
    said: str
    seconds: float


def main() -> int:
    """Tells every lie; prints a line for each and one of JSON for all."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", nargs="+", help="names of lies, or their beginnings")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    own = parser.parse_args()
    lies: list[Lie] = [*RUNNER_LIES, *STORE_LIES, *WRITE_LIES]
    chosen = [lie for lie in lies if not own.only or lie.name.startswith(tuple(own.only))]
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="beambert-lies-") as folder:
        liar = Liar(Path(folder))
        for lie in chosen:
            for exchange in exchanges(lie):
                outcomes.append(liar.tell(lie, exchange))
                print(
                    f"{outcomes[-1].end:9} {exchange:8} {lie.name}: {outcomes[-1].said[:150]}",
                    flush=True,
                )
        outcomes += tell_list_lies(Path(folder), own.only)
    wrong = [outcome.lie for outcome in outcomes if outcome.end != outcome.expected]
    result: dict[str, Any] = {
        **describe_soak("lying_runner"),
        "beam": version("apache-beam"),
        "documents": NUM_DOCUMENTS,
        "lies": len({outcome.lie for outcome in outcomes if outcome.expected != "unharmed"}),
        "builds": len(outcomes),
        "ends": dict(Counter(outcome.end for outcome in outcomes)),
        "wrong": wrong,
    }
    print(json.dumps(result))
    write_results(own.output, result, "outcomes", [asdict(each) for each in outcomes])
    return 1 if wrong else 0


def tell_list_lies(folder: Path, only: list[str] | None) -> list[Outcome]:
    """Tells each lie about lists to one pipeline of its own; prints a line for each."""
    lies = [lie for lie in LIST_LIES if not only or lie.name.startswith(tuple(only))]
    liar = make_list_liar(folder / "lists") if lies else None
    outcomes = []
    for lie in lies:
        assert liar is not None
        end, said, seconds = liar.tell(lie)
        said = said.replace(str(folder), "...")
        outcomes.append(Outcome(lie.name, "runner", lie.writer, lie.end, end, said, seconds))
        print(f"{end:9} {lie.writer:8} {lie.name}: {said[:150]}", flush=True)
    return outcomes


def make_list_liar(folder: Path) -> ListLiar:
    """Returns a liar over documents that take a part each."""
    folder.mkdir(parents=True)
    vocab = folder / "vocab.txt"
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocab.write_text("".join(f"{piece}\n" for piece in (*specials, ".", *WORDS)))
    texts = [json.loads(line)["text"] for line in make_documents(NUM_LISTED)]
    return ListLiar(
        folder, [f"{number:040} {2 * text}" for number, text in enumerate(texts)], vocab
    )


def exchanges(lie: Lie) -> tuple[str, ...]:
    """Returns the ways of bringing buckets together in which a lie is told."""
    if isinstance(lie, RunnerLie):
        return ("shuffle",)
    return lie.exchanges if isinstance(lie, StoreLie) and lie.before == "encoded" else ("files",)


class Liar:
    """One honest build in all its stages, another to take files from, and a fresh copy a lie."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        lines = make_documents(NUM_DOCUMENTS)
        self._prepare("own", lines)
        self._prepare(
            "other", [*lines[12:], *make_documents(NUM_DOCUMENTS + 12)[-12:]], "--seed", "7"
        )
        self._root_hash = open_dataset(str(folder / "own/finished")).manifest.root_hash
        self._other_groups = _group(folder / "other/encoded")

    def tell(self, lie: Lie, exchange: str) -> Outcome:
        """Builds with one lie, and returns how the build ended."""
        before = lie.before if isinstance(lie, StoreLie) else "encoded"
        folder = self._folder / "told"
        shutil.copytree(self._folder / "own" / before, folder)
        began = time.monotonic()
        try:
            with _told(lie, folder, self._folder / "other" / before, self._other_groups):
                end, said = self._end_of(folder, exchange, before)
        finally:
            shutil.rmtree(folder)
        told_by = "runner" if isinstance(lie, RunnerLie) else "store"
        seconds = round(time.monotonic() - began, 2)
        said = said.replace(str(self._folder), "...")
        if end == "unharmed" and lie.end == "healed":
            end = "healed"  # the dataset is the honest one, though files were not
        return Outcome(lie.name, told_by, exchange, lie.end, end, said, seconds)

    def _end_of(self, folder: Path, exchange: str, before: str) -> tuple[str, str]:
        if before != "finished":
            code, said = _run("shards", "--output", str(folder), *FLAGS, "--exchange", exchange)
            if code:
                return "refused", said
        code, said = _run("verify", str(folder), "--deep", "true")
        if code:
            return "verify", said
        is_own = open_dataset(str(folder)).manifest.root_hash == self._root_hash
        return (
            ("unharmed", f"root hash {self._root_hash[:16]}")
            if is_own
            else ("missed", "another root hash")
        )

    def _prepare(self, name: str, lines: list[str], *flags: str) -> None:
        """Makes the folders encoded, interrupted and finished of a corpus.

        Some documents are twice in the corpus.
        """
        home = self._folder / name
        (home / "text").mkdir(parents=True)
        for number in range(4):
            text = "".join(
                f"{line}\n" for line in [*lines[number::4], *lines[number * 3 : number * 3 + 2]]
            )
            (home / f"text/{number}.jsonl").write_text(text)
        words = (
            "--input",
            str(home / "text"),
            "--output",
            str(home / "encoded"),
            "--vocab_size",
            "100",
        )
        _expect(_run("tokens", *words, "--part_bytes", "8192", *FLAGS, *flags))
        shutil.copytree(home / "encoded", home / "interrupted")
        keeping = partial(_replaced, publish, "remove_leftovers", lambda *_: None)
        with keeping():
            _expect(_run("shards", "--output", str(home / "interrupted"), *FLAGS, *flags))
        shutil.copytree(home / "interrupted", home / "finished")
        for table in ("manifest.json", "shards.parquet", "blocks.parquet"):
            (home / "interrupted" / table).unlink()
        shutil.rmtree(home / "finished/_tasks")


class LyingGroupByKey(beam.PTransform):  # type: ignore[misc]
    """GroupByKey, whose groups then pass through a lie."""

    def __init__(self, lie: RunnerLie, others: dict[bytes, list[bytes]]) -> None:
        super().__init__()
        self._lie = lie
        self._others = others

    def expand(self, pairs: beam.PCollection) -> beam.PCollection:  # noqa: D102
        return (
            pairs
            | "Grouped" >> GroupByKey()
            | beam.Map(lambda group: (b"", (group[0], list(group[1]))))
            | "Together" >> GroupByKey()
            | beam.FlatMap(tell_groups, self._lie.name, self._others)
        )


def tell_groups(
    gathered: tuple[bytes, Any], name: str, others: dict[bytes, list[bytes]]
) -> list[Group]:
    """Returns all groups of a shuffle after a lie.

    Nothing is changed in shuffles of other things than documents.
    """
    groups = sorted(gathered[1])
    [lie] = [lie for lie in RUNNER_LIES if lie.name == name]
    is_of_documents = groups[0][0].startswith((b"train-", b"validation-"))
    return lie.tell(groups, others) if is_of_documents else groups


@contextlib.contextmanager
def _told(lie: Lie, folder: Path, other: Path, others: dict[bytes, list[bytes]]) -> Iterator[None]:
    """Tells a lie while the context is open."""
    if isinstance(lie, StoreLie):
        lie.tell(folder, other)
        yield
    elif isinstance(lie, RunnerLie):
        with _replaced(beam, "GroupByKey", partial(LyingGroupByKey, lie, others)):
            yield
    else:
        write = Folder.write

        def write_some(output: Folder, name: str, data: bytes | Path) -> None:
            kept = data if isinstance(data, Path) else lie.keep(name, data)
            if kept is not None:
                write(output, name, kept)

        with _replaced(Folder, "write", write_some):
            yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def make_documents(count: int) -> list[str]:
    """Returns JSON lines of made-up documents, of which no two are equal."""
    lines = []
    for number in range(count):
        rows = []
        for row in range(12):
            places = [(number * 7 + row * 3 + step * (1 + number % 9)) % 10 for step in range(9)]
            sentence = " ".join(WORDS[place] for place in places)
            rows.append(f"{sentence.capitalize()} {number} {row}.")
        lines.append(json.dumps({"text": " ".join(rows), "number": number}))
    return lines


def _group(folder: Path) -> dict[bytes, list[bytes]]:
    """Returns the groups that an honest shuffle makes: the chunks of each key."""
    tokens = Folder(str(folder / "tokens"))
    store = read_store(tokens)
    settings = BuildSettings(output=str(folder), num_buckets=4)
    held_out = choose_held_out(
        store.totals.sources, settings.validation_fraction, settings.validation_tokens
    )
    buckets = choose_buckets(settings, store.totals, held_out)
    found: dict[bytes, list[bytes]] = {}
    for part in store.part_names:
        for key, chunk in cut_part(
            part, TokenParts(tokens, "uint16", held_out=held_out.ids), buckets
        ):
            found.setdefault(key, []).append(chunk)
    return found


def _run(*words: str) -> tuple[int, str]:
    """Runs a command without showing its output.

    Returns:
        The exit code, and the last line that was printed. Lines of progress do not count, unless
        there are no others.
    """
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run_program("python -m pipeline", "", COMMANDS, list(words))
    lines = [line for line in said.getvalue().replace("\r", "\n").splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if "it/s" not in line and "task/s" not in line and "finding(s)" not in line
    ]
    return code, (telling or lines or [""])[-1]


def _expect(ran: tuple[int, str]) -> None:
    assert ran[0] == 0, f"an honest build failed: {ran[1]}"


if __name__ == "__main__":
    from scripts.soak.lying_runner import (
        main as run_imported,
    )  # workers find what is here by this module's name

    sys.exit(run_imported())
