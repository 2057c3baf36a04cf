"""Summarizes a dataset in numbers: report.json, and the same as text and as an HTML page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.inspect.measure import measure_documents, measure_group
from pipeline.inspect.mixture import find_unused, format_mixture, measure_mixture, share
from pipeline.inspect.validation import measure_validation
from pipeline.pages.render import render
from pipeline.shards.dataset import Dataset
from pipeline.shards.instance_kind import has_pairs
from pipeline.shards.manifest import named_damage, open_parquet, pass_folder
from pipeline.shards.records import Group, json_bytes
from pipeline.shards.redactions import describe_redactions
from pipeline.shards.verify import describe_coverage, find_uncovered
from pipeline.storage.folder import Folder
from pipeline.storage.json_files import expected_fields, parse_object
from pipeline.tokens.provenance import find_tokens

REPORT = "report.json"
REPORT_PAGE = "report.html"
SOURCES = "sources.parquet"
REPORT_VERSION = 6
"""Version of report.json; a report of another version is made anew."""
_NUM_SOURCES = 50
"""How many of the input files the report names, the largest ones."""
_MADE_AGAIN = "delete it and run `python -m pipeline report` on the dataset, which makes it anew"
_MUCH_DROPPED = 1 / 3
"""The share of dropped documents above which a check fails."""
_MUCH_UNKNOWN = 0.01
"""The share of [UNK] among all tokens above which a check fails."""


def summarize_dataset(
    dataset: Dataset, tokens: str | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Collects the numbers of a finished dataset. They are the value of `dataset` in report.json.

    Totals are from the dataset's manifest and tables. Lengths and examples are from a sample of its
    blocks, whose size is bounded.

    Args:
        dataset: The dataset.
        tokens: Folder or URL of its encoded documents; None means `tokens` below the dataset.
        options: Options of the filesystem that holds the encoded documents.

    Raises:
        ValueError: A file of the dataset is damaged.
    """
    manifest = dataset.manifest
    rows = _read_sources(dataset)
    licences = {row["source"]: row["licence"] for row in rows or () if "licence" in row}
    counters = manifest.counters
    copied = ("root_hash", "settings_hash", "vocab_sha256", "format_version", "vocab_size")
    return {
        "report_version": REPORT_VERSION,
        "name": dataset_name(dataset),
        **{name: getattr(manifest, name) for name in copied},
        "software": dict(manifest.software),
        "settings": dict(manifest.settings),
        "counters": dict(counters),
        "unknown_rate": share(counters.get("unknown_tokens", 0), counters.get("tokens", 0)),
        "bytes": sum(shard.num_bytes for shard in dataset.all_shards),
        "sources": _summarize_sources(rows),
        "mixture": measure_mixture(dataset, licences),
        "validation": measure_validation(manifest.sources, manifest.settings),
        "coverage": _measure_coverage(dataset),
        "documents": measure_documents(find_tokens(dataset, tokens, options)),
        "groups": [asdict(group) | _summarize_group(dataset, group) for group in manifest.groups],
    }


def format_report(report: dict[str, Any]) -> str:
    """Returns report.json as text for people.

    Args:
        report: The content of report.json.
    """
    dataset = report["dataset"]
    build = report.get("build", {})
    lines = [
        f"dataset     {dataset['name']}",
        f"root hash   {dataset['root_hash']}",
        f"vocabulary  {dataset['vocab_size']:,} entries",
        *describe_redactions(dataset["settings"]),
    ]
    if sources := dataset["sources"]:
        lines.append(f"sources     {sources['files']:,} file(s), {sources['bytes']:,} bytes")
    lines += [f"  {reading}" for reading in build.get("readings", ())]
    lines += format_mixture(dataset["mixture"])
    lines.append("documents")
    lines += [
        f"  {name.replace('_', ' '):<22} {count:>14,}"
        for name, count in dataset["counters"].items()
    ]
    lines.append(f"  {'unknown tokens':<22} {dataset['unknown_rate']:>14.4%}")
    lines.append("checks")
    lines += [
        f"  {'ok' if check.holds else 'LOOK':<5} {check.what}: {check.said}"
        for check in find_checks(dataset)
    ]
    for group in dataset["groups"]:
        lines += _format_group(group)
    if seconds := build.get("seconds"):
        stages = ("vocabulary", "tokens", "shards")
        lines.append(f"time        {', '.join(f'{name} {seconds[name]:.1f} s' for name in stages)}")
    return "\n".join(lines)


def read_report(dataset: Dataset) -> dict[str, Any]:
    """Returns the content of report.json, or computes it if the file is missing or out of date.

    Nothing is written. The file is out of date if it is about another dataset, or if it has another
    REPORT_VERSION.

    Raises:
        ValueError: report.json, or a file that is read to compute it, is damaged.
    """
    report = load_report(dataset)
    if report.get("dataset", {}).get("report_version") != REPORT_VERSION:
        report["dataset"] = summarize_dataset(dataset, tokens_url(report))
    report["dataset"]["name"] = dataset_name(dataset)  # the dataset may have been moved
    return report


def dataset_name(dataset: Dataset) -> str:
    """Returns the name of a dataset, which is the last component of its path."""
    return dataset.folder.path.rsplit("/", 1)[-1]


def load_report(dataset: Dataset) -> dict[str, Any]:
    """Returns the content of report.json as it is stored.

    The result is empty if there is no such file. It is empty too if the file is about another
    dataset, so that its root hash is not that of `dataset`.

    Raises:
        ValueError: The file is damaged.
    """
    if not dataset.folder.exists(REPORT):
        return {}
    where = dataset.locate(REPORT)
    report = parse_object(dataset.read_file(REPORT), where, _MADE_AGAIN)
    with expected_fields(where, _MADE_AGAIN):
        is_current = report.get("dataset", {}).get("root_hash") == dataset.manifest.root_hash
        # `tokens_url` reads this later, when an error would not name the file.
        report.get("build", {}).get("settings", {}).get("tokens")
    return report if is_current else {}


def write_report(dataset: Dataset, report: dict[str, Any]) -> None:
    """Writes report.json into the dataset."""
    dataset.folder.write(REPORT, json_bytes(report))


def tokens_url(report: Mapping[str, Any]) -> str | None:
    """Returns the folder or URL of the encoded documents, from the build's setting `tokens`.

    None means that they are in the folder `tokens` of the dataset.

    Args:
        report: The content of report.json.
    """
    url: str | None = report.get("build", {}).get("settings", {}).get("tokens")
    return url


def _summarize_group(dataset: Dataset, group: Group) -> dict[str, Any]:
    """Returns the numbers of one split and sequence length, for report.json.

    Mean length and shares are from the manifest. Other numbers are from a sample of instances.
    """
    pairs = has_pairs(dataset.manifest.settings)
    shown = {"mask": group.masked_as_mask, "kept": group.masked_kept}
    shown["random"] = group.masked - sum(shown.values())
    return {
        "mean_length": round(group.tokens / max(1, group.instances), 2),
        "fill": share(group.tokens, group.instances * group.seq_len),
        "random_next_share": share(group.random_next, group.instances) if pairs else None,
        "masked_share": share(group.masked, group.tokens),
        "mask_shares": {name: share(count, group.masked) for name, count in shown.items()},
        **measure_group(dataset, group),
    }


def _measure_coverage(dataset: Dataset) -> dict[str, Any]:
    """Checks that every train pass holds every document, by the seals of its shards.

    A seal has the number of documents of a shard, and a checksum of their ids.

    Returns:
        For report.json, a mapping of `is_whole` to whether no document is missing, and `said` to
        the result in words.
    """
    manifest = dataset.manifest
    shards = dataset.all_shards
    for (seq_len, pass_index), what in find_uncovered(manifest, shards):
        where = pass_folder("train", seq_len, pass_index)
        return {"is_whole": False, "said": f"{where}: {what}"}
    return {"is_whole": True, "said": describe_coverage(manifest, shards)}


def _summarize_sources(rows: Sequence[Mapping[str, Any]] | None) -> dict[str, Any] | None:
    """Summarizes the input files, for report.json.

    Args:
        rows: The rows of sources.parquet, one per input file; None if there is no such file.

    Returns:
        A mapping with the number of `files`, their total `bytes`, and the rows of the `largest`
        files. None if `rows` is None.
    """
    if rows is None:
        return None
    largest = sorted(rows, key=lambda row: (-row["bytes"], row["url"]))[:_NUM_SOURCES]
    return {"files": len(rows), "bytes": sum(row["bytes"] for row in rows), "largest": largest}


def _read_sources(dataset: Dataset) -> list[dict[str, Any]] | None:
    """Returns the rows of sources.parquet, one per input file, or None if there is no such file.

    Raises:
        ValueError: The file is damaged, or lacks a column.
    """
    if not dataset.folder.exists(SOURCES):
        return None
    data = dataset.read_file(SOURCES)
    remedy = "run the command that built the dataset once more, which writes it anew"
    with named_damage(dataset.locate(SOURCES), remedy):
        rows = open_parquet(pa.BufferReader(data)).read(use_threads=False).to_pylist()
    lacking = [name for name in ("url", "bytes", "source") if rows and name not in rows[0]]
    if lacking:
        columns = ", ".join(rows[0])
        raise ValueError(
            f"{dataset.locate(SOURCES)}: its columns are {columns}, without {lacking[0]}; {remedy}"
        )
    return list(rows)


def _format_group(group: dict[str, Any]) -> list[str]:
    """Returns the lines of text about one split and sequence length."""
    sample = group["sample"]
    random_next = group["random_next_share"]
    quantiles = group["lengths"]["quantiles"]
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in group["mask_shares"].items())
    lengths = ", ".join(f"{name} <= {length}" for name, length in quantiles.items())
    return [
        f"{group['split']} L{group['seq_len']}",
        f"  {group['instances']:,} instances, {group['tokens']:,} tokens,"
        f" {group['masked']:,} masked ({group['masked_share']:.2%});"
        f" {group['passes']} pass(es), {group['shards']} shard(s)",
        f"  mean length {group['mean_length']} (fill {group['fill']:.1%})"
        + ("" if random_next is None else f", random next {random_next:.1%}"),
        f"  at masked positions: {shares}",
        f"  sampled: {sample['blocks']:,} of {sample['of_blocks']:,} blocks,"
        f" {sample['instances']:,} instances; lengths: {lengths}",
    ]


class Check(NamedTuple):
    """One check of a dataset's numbers, with its outcome.

    Attributes:
        what: Name of the check.
        said: What was found, in words.
        holds: Whether the check is passed.
    """

    what: str
    said: str
    holds: bool


def find_checks(dataset: Mapping[str, Any]) -> Iterator[Check]:
    """Checks the numbers of a dataset for what usually means a mistake, such as much [UNK].

    Yields the outcome of every check, whether passed or not.

    Args:
        dataset: The numbers that `summarize_dataset` returns.
    """
    yield _check_documents(dataset["counters"])
    unused = find_unused(dataset["mixture"])
    found = "; ".join(unused) or f"{len(dataset['mixture'])} source(s)"
    yield Check("Every source is trained on", found, not unused)
    if validation := dataset["validation"]:
        found = "; ".join([f"it {validation['said']}", *validation["warnings"]])
        yield Check("Validation split", found, not validation["warnings"])
    yield Check("Coverage", dataset["coverage"]["said"], dataset["coverage"]["is_whole"])
    rate = dataset["unknown_rate"]
    yield Check("Unknown pieces", f"{rate:.3%} of all tokens", rate < _MUCH_UNKNOWN)


def _check_documents(counters: Mapping[str, int]) -> Check:
    """Checks that all documents read were kept or dropped, and that not too many were dropped."""
    read = counters.get("documents_read", 0)
    kept = counters["documents"]
    dropped = sum(count for name, count in counters.items() if name.startswith("dropped_"))
    found = f"{read:,} read; {kept:,} kept, {dropped:,} dropped"
    if cut := counters.get("documents_cut", 0):
        found += f"; {cut:,} cut"
    is_much = dropped > _MUCH_DROPPED * read
    if is_much:
        found += ", more than a third: inspect DATASET --dropped shows examples"
    return Check("Documents read are kept", found, read <= kept + dropped and not is_much)


def render_page(report: Mapping[str, Any]) -> str:
    """Returns the HTML page of a report. The order of keys in the report does not change the page.

    Args:
        report: The content of report.json.
    """
    report = json.loads(json.dumps(report, sort_keys=True))
    return render(
        Path(__file__).with_name("report.html"),
        dataset=report["dataset"],
        build=report.get("build", {}),
        checks=list(find_checks(report["dataset"])),
    )


def write_page(report: Mapping[str, Any], folder: Folder, name: str) -> None:
    """Writes a report as an HTML page.

    Args:
        report: The content of report.json.
        folder: The folder of the page.
        name: The file in it.
    """
    folder.write(name, render_page(report).encode())
