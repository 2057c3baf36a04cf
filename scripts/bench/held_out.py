"""What looking for texts of task files costs beside the rest of the tokens job: one JSON line.

    python -m scripts.bench.held_out --input 'wiki/*.zst' --task_files squad/dev.json sst2/dev.tsv

The stages of the job run over lists of documents in this process, from reading to packed token
parts, with a given vocabulary. The share is CPU time of looking over that of all stages without it.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.task_files import read_task_texts
from pipeline.jobs.tokens_job import ReadingRule, read_lists
from pipeline.storage.folder import Folder
from pipeline.text.task_texts import WindowFinder, prepare_texts
from pipeline.tokens.document_lists import (
    clean_documents,
    encode_documents,
    find_task_texts,
    split_documents,
)
from pipeline.tokens.provenance import pack_places
from pipeline.tokens.token_parts import pack_documents
from scripts.bench.measured import cpu_seconds, print_result, summarize
from tokenizer.encode import Encoder
from tokenizer.vocab import parse_vocab

_LIST_CHARACTERS = 8 * 2**20


class Watch:
    """CPU seconds of named calls, added up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        """A call's result; its CPU time is added to the name."""
        start = time.process_time()
        result = call()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start
        return result


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    for name in ("input", "task_files"):
        parser.add_argument(f"--{name}", nargs="+", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--task_words", type=int, default=13)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    texts = prepare_texts(read_task_texts(arguments.task_files), arguments.task_words)
    folder, name = Folder.of_file(arguments.vocab)
    encoder = Encoder(parse_vocab(folder.read(name), arguments.vocab), lower_case=True)
    making = cpu_seconds(lambda: WindowFinder(texts, encoder))
    finder = WindowFinder(texts, encoder)
    runs = [measure(arguments.input, finder, encoder) for _ in range(arguments.repeats)]
    last = runs[-1]
    print_result(
        "held_out",
        vars(arguments),
        ("numpy", "tokenizers"),
        task_texts=len(texts.places),
        task_words=sum(line.count(" ") + 1 for line in texts.lines),
        table_seconds=round(making, 3),
        mb=last["mb"],
        documents=last["documents"],
        hits=last["hits"],
        mb_per_cpu_second=summarize([run["mb"] / run["looking"] for run in runs]),
        share_of_the_tokens_job=summarize([run["looking"] / run["others"] for run in runs], 4),
    )
    return 0


def measure(patterns: list[str], finder: Any, encoder: Encoder) -> dict[str, float]:
    """MB of text, documents and hits, and CPU seconds of looking and of all other stages."""
    watch, found = Watch(), {"mb": 0.0, "documents": 0.0, "hits": 0.0}
    rule = ReadingRule(["text"], "stop", _LIST_CHARACTERS)
    for part in plan_parts(find_inputs(patterns), "auto", 2**30):
        lists = read_lists(part, rule)
        while (
            documents := watch.time("reading", lambda lists=lists: next(lists, None))  # type: ignore[misc]
        ) is not None:
            cleaned = watch.time("cleaning", lambda own=documents: clean_documents(own))  # type: ignore[misc]
            encoded = watch.time("encoding", lambda own=cleaned: _encode(own, encoder))  # type: ignore[misc]
            looked = watch.time("looking", lambda own=encoded: _look(own, finder))  # type: ignore[misc]
            found["mb"] += sum(len(each.text.encode()) for each in cleaned.documents) / 1e6
            found["documents"] += len(cleaned.documents)
            found["hits"] += len(looked.overlaps)
    looking = watch.seconds.pop("looking")
    return found | {"looking": looking, "others": sum(watch.seconds.values())}


def _look(documents: Any, finder: WindowFinder) -> Any:
    return find_task_texts(documents, finder, drops=False)


def _encode(documents: Any, encoder: Encoder) -> Any:
    encoded = encode_documents(split_documents(documents, ["en"]), encoder)
    pack_documents(encoded.documents)
    pack_places(encoded.documents)
    return encoded


if __name__ == "__main__":
    sys.exit(main())
