"""Writes the answer of `python -m trainer ask` as a table to read.

An answer is a sequence of records (trainer/ask/answers.py): about steps, their instances,
documents and other things. A read is one time that a step read an instance with a document.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.inspect.show import format_segment
from pipeline.storage.quoting import printable
from trainer.ask.answers import Record

_SHOWN_READS = 50
_TEXT_WIDTH = 60


def format_records(records: Iterable[Record]) -> Iterator[str]:
    """Yields the lines of the table that `ask` prints, lazily.

    For each document, at most the first 50 reads are listed.

    Args:
        records: The records of the answer. The reads of a document follow the document.
    """
    kind_before = ""
    num_reads = 0
    for record in records:
        kind = str(record["kind"])
        if kind_before == "read" and kind != "read":
            yield from _more_reads(num_reads)
        num_reads = num_reads + 1 if kind == "read" else 0
        if num_reads <= _SHOWN_READS:
            yield from _FORMATS[kind](record, kind_before == kind)
        kind_before = kind
    yield from _more_reads(num_reads)


def _more_reads(num_reads: int) -> Iterator[str]:
    """Yields a line that says how many reads of a document are not listed, if there are any.

    Args:
        num_reads: The number of all reads of the document.
    """
    if num_reads > _SHOWN_READS:
        yield f"  and {num_reads - _SHOWN_READS:,} more; --format jsonl lists all"


def _format_step(record: Record, _: bool) -> Iterator[str]:
    """Yields the lines about a step."""
    yield ""
    yield (
        f"step {record['step']:,}, phase {record['phase']}, length {record['seq_len']}, from"
        f" position {record['position']:,}: {record['instances']:,} instances of"
        f" {record['documents']:,} documents, {record['tokens']:,} tokens,"
        f" {record['masked']:,} masked"
    )
    if record["is_used"] is False:
        yield f"  {describe_refusal(record)}"
    yield f"  {describe_checkpoints(record['checkpoints_before'], record['step'])}"


def describe_refusal(record: Record) -> str:
    """Returns why the gradient of a step was not used."""
    limit = f", the limit {record['limit']:.4g}" if record["limit"] is not None else ""
    norm = record["grad_norm"]
    shown = norm if isinstance(norm, str) else f"{norm:.4g}"
    undone = "; then the run went back, and left these instances out" if record["is_undone"] else ""
    return f"its gradient was not used: the norm was {shown}{limit}{undone}"


def describe_checkpoints(steps: list[int], step: int | None) -> str:
    """Returns a line about the checkpoints that were saved before a step.

    It names the newest five, and counts the earlier ones.

    Args:
        steps: The steps of these checkpoints, ascending.
        step: The step; None if there is no such step and `steps` are those of all checkpoints.
    """
    shown = ", ".join(f"{each:,}" for each in steps[-5:])
    more = f"{len(steps) - 5:,} earlier and " if len(steps) > 5 else ""
    if step is None:
        return f"checkpoints: {more}{shown}" if steps else "there is no checkpoint"
    if not steps:
        return f"no checkpoint that still exists is from before step {step:,}"
    return f"checkpoints before step {step:,}: {more}{shown}"


def _format_instance(record: Record, follows: bool) -> Iterator[str]:
    """Yields the line of an instance, after a line of column names if it is the first of a step.

    Args:
        record: The record of the instance.
        follows: Whether the previous record was of an instance too. The column names are then
            already there.
    """
    if not follows:
        yield (
            f"  {'slot':>5}  {'A':<16}  {'B':<16}  {'tokens':>6}  {'masked':>6}  where; text of A"
        )
    other = _describe_b(record)
    text = format_segment(record["a"])
    cut = text if len(text) <= _TEXT_WIDTH else f"{text[: _TEXT_WIDTH - 3]}..."
    where = f"{record['dataset']} {record['shard']}#{record['row']}"
    yield (
        f"  {record['slot']:>5}  {record['document_a']:<16}  {other:<16}  {record['tokens']:>6}"
        f"  {record['masked']:>6}  {printable(where)}; {printable(cut)}"
    )


def _format_document(record: Record, follows: bool) -> Iterator[str]:
    """Yields the lines about a document.

    A document that was asked for has a paragraph of its own, which also says how often it was read.
    A document of a step has two lines. The first document of a step has a heading before them.

    Args:
        record: The record of the document.
        follows: Whether the previous record was of a document too. The heading is then already
            there.
    """
    if "asked" not in record:
        if not follows:
            yield "  documents"
        yield f"  {record['id'][:16]}  {describe_origin(record)}"
        yield f"  {'':16}  {printable(record['opening'])}"
        return
    yield ""
    yield f"document {record['id']} of {printable(record['dataset'])}"
    if record["asked"] != record["id"]:
        yield f"  asked     {printable(record['asked'])}"
    if "place" in record:
        yield f"  from      {describe_origin(record)}"
        yield f"  begins    {printable(record['opening'])}"
    yield from (f"  {name:<9} {text}" for name, text in describe_reads(record))


def describe_origin(record: Record) -> str:
    """Returns a document's source, language and place on one line."""
    return printable(f"{record['source']} ({record['language']}), {record['place']}")


def describe_reads(record: Record) -> list[tuple[str, str]]:
    """Returns what is known about the reads of a document, as the rows of a small table.

    Args:
        record: The record of a document that was asked for.

    Returns:
        Pairs of a name and a text, such as ("read", "never by a step of this run").
    """
    instances = f"in {record['instances']:,} train instances of the run's lengths"
    if record["is_left_out"]:
        instances += ", which this run leaves out"
    elif not record["instances"]:
        instances += ": held out for validation, or left out by its source's weight"
    lines = [("held", instances)]
    if record["reads_before"]:
        lines.append(
            (
                "before",
                f"{record['reads_before']:,} times in steps of {printable(record['trunk'])}, which"
                " this run continues: ask it too",
            )
        )
    if not record["reads"]:
        lines.append(("read", "never by a step of this run"))
    else:
        as_b = f", {record['as_random_b']:,} as a random B" if record["as_random_b"] else ""
        lines.append(
            (
                "read",
                f"{record['reads']:,} times in {record['steps']:,} steps, from step"
                f" {record['first_step']:,} to {record['last_step']:,}: {record['as_a']:,} as A"
                f"{as_b}",
            )
        )
    lines.append(
        ("saved", describe_checkpoints(record["checkpoints_before"], record["first_step"]))
    )
    return lines


def _format_read(record: Record, follows: bool) -> Iterator[str]:
    """Yields the line of a read, after a line of column names if it is the first of a document.

    Args:
        record: The record of the read.
        follows: Whether the previous record was of a read too. The column names are then already
            there.
    """
    if not follows:
        yield (
            f"  {'step':>9}  {'phase':>5}  {'length':>6}  {'slot':>6}  {'epoch':>5}  {'as':<8}"
            "  where"
        )
    where = printable(f"{record['dataset']} {record['shard']}#{record['row']}")
    unused = "" if record["is_used"] is not False else "; the step's gradient was not used"
    step, phase, slot = (_count(record[name]) for name in ("step", "phase", "slot"))
    yield (
        f"  {step:>9}  {phase:>5}  {record['seq_len']:>6}  {slot:>6}  {record['epoch']:>5}"
        f"  {describe_segments(record):<8}  {where}{unused}"
    )


def describe_segments(record: Record) -> str:
    """Returns which segments of an instance are from a document: "A", "A and B" or "random B".

    Args:
        record: The record of a read of the document.
    """
    if record["is_a"] and record["is_b"]:
        return "A and B"
    return "A" if record["is_a"] else "random B"


def _count(value: Any) -> str:
    """Returns a number with commas, or a dash for one that is not known."""
    return "-" if value is None else f"{value:,}"


def _format_claim(record: Record, _: bool) -> Iterator[str]:
    """Yields the lines of a claim of a certificate, whose verdict comes first."""
    yield f"{record['verdict']:<17}  {printable(record['claim'])}"
    yield f"{'':17}  {printable(record['why'])}"


def _format_blame(record: Record, _: bool) -> Iterator[str]:
    """Yields the lines about the norm of a step's gradient."""
    yield f"step {record['step']:,}, {record['instances']:,} instances: the norm of its gradient"
    yield from (f"  {name:<14} {text}" for name, text in describe_norms(record))


def describe_norms(record: Record) -> list[tuple[str, str]]:
    """Returns the norms of a step that was made again, as the rows of a small table.

    Args:
        record: The record of kind blame.
    """
    median = record["median_before"]
    before = "not known" if median is None else f"{median:.4g}, the median"
    recorded = record["recorded_norm"]
    steps = f"{record['steps_made']:,} steps were made again from {record['begin']}"
    passes = f"the step {record['passes']:,} times, and its instances alone"
    return [
        ("before", f"{before} of the {record['steps_before']:,} steps before"),
        ("recorded", "not known" if recorded is None else _norm(recorded)),
        ("with dropout", f"{_norm(record['norm_with_dropout'])}, made again as the run made it"),
        ("without", f"{_norm(record['norm'])}, made again without dropout, as all below"),
        ("passes", f"{steps}, then {passes} {record['single_passes']:,} times"),
    ]


def _format_half(record: Record, follows: bool) -> Iterator[str]:
    """Yields the line of a half, after a line of column names if it is the first."""
    if not follows:
        yield ""
        yield f"  {'left out':<16}  norm without them"
    yield f"  {describe_slots(record):<16}  {_norm(record['norm_without'])}"


def describe_slots(record: Record) -> str:
    """Returns the slots of a half in words, such as "slots 0-7"."""
    first = record["first_slot"]
    last = record["last_slot"]
    return f"slot {first}" if first == last else f"slots {first}-{last}"


def _format_culprit(record: Record, follows: bool) -> Iterator[str]:
    """Yields the line of an instance, after a line of column names if it is the first."""
    if not follows:
        yield ""
        yield (
            f"  {'slot':>5}  {'share':>7}  {'norm without it and those above':>31}  {'A':<16}"
            f"  {'B':<16}  text of A"
        )
    without = record["norm_without_first"]
    shown = "-" if without is None else _norm(without)
    other = _describe_b(record)
    text = format_segment(record["a"])
    cut = text if len(text) <= _TEXT_WIDTH else f"{text[: _TEXT_WIDTH - 3]}..."
    yield (
        f"  {record['slot']:>5}  {record['share']:>7.1%}  {shown:>31}  {record['document_a']:<16}"
        f"  {other:<16}  {printable(cut)}"
    )


def _describe_b(record: Record) -> str:
    """Returns where the segment B of an instance is from: another document, or after A."""
    if not record["b"]:
        return "-"
    return str(record["document_b"]) if record["is_random_next"] else "next"


def _norm(value: float | str) -> str:
    """Returns a norm as text; a norm that is not finite may be text already."""
    return value if isinstance(value, str) else f"{value:.4g}"


_FORMATS = {
    "claim": _format_claim,
    "blame": _format_blame,
    "half": _format_half,
    "culprit": _format_culprit,
    "step": _format_step,
    "instance": _format_instance,
    "document": _format_document,
    "read": _format_read,
}
"""The function that yields the lines of a record, by the record's kind.

Its second argument says whether the previous record has the same kind.
"""
