"""Renders an answer as one HTML page, from the template ask.html beside this file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.pages.render import render
from trainer.ask.answers import Record
from trainer.ask.table import (
    describe_checkpoints,
    describe_norms,
    describe_origin,
    describe_reads,
    describe_refusal,
    describe_segments,
    describe_slots,
)

MOST_RECORDS = 20_000
"""The most records on a page; a browser shows more only slowly."""


def render_answer(name: str, question: str, records: Iterable[Record]) -> str:
    """Returns the whole page as HTML, in which all text is escaped.

    Args:
        name: The folder or URL of the run, as the user gave it.
        question: The question in words, for the title.
        records: The records of the answer, in their order.

    Raises:
        ValueError: There are more than MOST_RECORDS records.
    """
    steps: list[dict[str, Any]] = []
    documents: list[dict[str, Any]] = []
    origins: dict[str, Record] = {}
    claims: list[tuple[str, str, str]] = []
    blamed: dict[str, list[Record]] = {"blame": [], "half": [], "culprit": []}
    for number, record in enumerate(records):
        if number == MOST_RECORDS:
            raise ValueError(
                f"the answer has more than {MOST_RECORDS:,} instances, documents and reads, which"
                " is too much for a page: ask about fewer steps or documents, or give --format"
                " jsonl"
            )
        if record["kind"] == "claim":
            claims.append((record["verdict"], record["claim"], record["why"]))
        elif record["kind"] in blamed:
            blamed[record["kind"]].append(record)
        elif record["kind"] == "step":
            steps.append({**record, "rows": []})
        elif record["kind"] == "instance":
            steps[-1]["rows"].append(record)
        elif record["kind"] == "read":
            documents[-1]["rows"].append(record)
        elif "asked" in record:
            documents.append({**record, "rows": []})
        else:
            origins[record["id"][:16]] = record
    return render(
        Path(__file__).with_name("ask.html"),
        name=name,
        question=question,
        steps=steps,
        documents=documents,
        origins=origins,
        claims=claims,
        blamed=blamed,
        describe_checkpoints=describe_checkpoints,
        describe_origin=describe_origin,
        describe_reads=describe_reads,
        describe_norms=describe_norms,
        describe_refusal=describe_refusal,
        describe_segments=describe_segments,
        describe_slots=describe_slots,
    )
