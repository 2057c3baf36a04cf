"""Holds what benchmarks share: their line of results, statistics, CPU seconds and documents."""

import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from scripts.checkout import commit


def print_result(benchmark: str, config: object, packages: Iterable[str], **found: Any) -> None:
    """Prints the result of a benchmark as one JSON line.

    Args:
        benchmark: The name of the benchmark.
        config: What was measured, such as sizes and flags.
        packages: The packages whose versions the line has.
        found: The numbers that were measured.
    """
    result = {
        "benchmark": benchmark,
        "commit": commit(),
        "versions": {name: version(name) for name in packages},
        "hardware": f"{platform.machine()} {platform.processor()}".strip(),
        "python": platform.python_version(),
        "config": config,
    }
    print(json.dumps(result | found))


def summarize(rates: Sequence[float], digits: int = 2) -> dict[str, Any]:
    """Returns the number, the median, and the least and greatest of the rates of several runs."""
    return {
        "n": len(rates),
        "median": round(float(np.median(rates)), digits),
        "spread": [round(min(rates), digits), round(max(rates), digits)],
    }


def cpu_seconds(function: Callable[[], object]) -> float:
    """Returns the CPU seconds that a call takes, over all threads of this process."""
    start = time.process_time()
    function()
    return time.process_time() - start


def iterate_documents(patterns: Sequence[str]) -> Iterator[str]:
    """Yields the cleaned texts of the documents in some files, without those that are empty."""
    # What reads documents is not on a machine that only trains.
    from pipeline.documents.parts import find_inputs, plan_parts
    from pipeline.documents.read import read_part
    from pipeline.text.cleaning import clean_text

    parts = plan_parts(find_inputs(patterns), "auto", 2**30)
    return (
        text
        for part in parts
        for document in read_part(part)
        if (text := clean_text(document.text))
    )


def read_documents(patterns: Sequence[str]) -> list[str]:
    """Returns the texts of `iterate_documents` as a list."""
    return list(iterate_documents(patterns))
