"""What every benchmark says of the machine and of its runs, and how CPU seconds are measured."""

import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from scripts.checkout import commit


def print_result(benchmark: str, config: object, packages: Iterable[str], **found: Any) -> None:
    """One JSON line: where and with what it was measured, then what was found."""
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
    """Number, median and spread of the rates of several runs."""
    return {
        "n": len(rates),
        "median": round(float(np.median(rates)), digits),
        "spread": [round(min(rates), digits), round(max(rates), digits)],
    }


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU seconds of this process, all threads, that a call takes."""
    start = time.process_time()
    function()
    return time.process_time() - start


def iterate_documents(patterns: Sequence[str]) -> Iterator[str]:
    """Cleaned texts of the documents of an input, empty ones left out."""
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
    """All that `iterate_documents` gives."""
    return list(iterate_documents(patterns))
