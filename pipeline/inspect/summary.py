"""What a dataset holds, in numbers: report.json, which its text here and pipeline.inspect.page show."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.inspect.checks import find_checks
from pipeline.inspect.measure import MASK_KINDS, measure_documents, measure_group
from pipeline.inspect.mixture import format_mixture, measure_mixture
from pipeline.inspect.validation import measure_validation
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import pass_folder
from pipeline.shards.records import Group, json_bytes
from pipeline.shards.verify import describe_coverage, find_uncovered
from pipeline.tokens.provenance import find_tokens

REPORT = "report.json"
SOURCES = "sources.parquet"
REPORT_VERSION = 5
_NUM_SOURCES = 50


def summarize_dataset(
    dataset: Dataset, tokens: str | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Totals of the whole dataset, and what a bounded sample of it shows.

    Args:
        dataset: A finished one.
        tokens: Folder or URL of its encoded documents; by default below the dataset.
        options: Options of the filesystem that holds `tokens`.
    """
    manifest, rows = dataset.manifest, _read_sources(dataset)
    licences = {row["source"]: row["licence"] for row in rows or () if "licence" in row}
    return {
        "report_version": REPORT_VERSION,
        "name": dataset_name(dataset),
        "root_hash": manifest.root_hash,
        "settings_hash": manifest.settings_hash,
        "vocab_sha256": manifest.vocab_sha256,
        "format_version": manifest.format_version,
        "software": dict(manifest.software),
        "settings": dict(manifest.settings),
        "vocab_size": manifest.vocab_size,
        "counters": dict(manifest.counters),
        "unknown_rate": _share(
            manifest.counters.get("unknown_tokens", 0), manifest.counters.get("tokens", 0)
        ),
        "bytes": sum(shard.num_bytes for shard in dataset.all_shards),
        "sources": _summarize_sources(rows),
        "mixture": measure_mixture(dataset, licences),
        "validation": measure_validation(manifest.sources, manifest.settings),
        "coverage": _measure_coverage(dataset),
        "documents": measure_documents(find_tokens(dataset, tokens, options), manifest.vocab_size),
        "groups": [asdict(group) | _summarize_group(dataset, group) for group in manifest.groups],
    }


def format_report(report: dict[str, Any]) -> str:
    """report.json for people."""
    dataset, build = report["dataset"], report.get("build", {})
    lines = [
        f"dataset     {dataset['name']}",
        f"root hash   {dataset['root_hash']}",
        f"vocabulary  {dataset['vocab_size']:,} entries",
    ]
    if sources := dataset["sources"]:
        lines.append(f"sources     {sources['files']:,} file(s), {sources['bytes']:,} bytes")
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
    """report.json; made anew where the dataset has none, or one of another content or of an earlier version."""
    found = load_report(dataset)
    if found.get("dataset", {}).get("report_version") != REPORT_VERSION:
        found["dataset"] = summarize_dataset(dataset, tokens_url(found))
    found["dataset"]["name"] = dataset_name(dataset)  # it may have been moved
    return found


def dataset_name(dataset: Dataset) -> str:
    """The last part of the dataset's path."""
    return dataset.folder.path.rsplit("/", 1)[-1]


def load_report(dataset: Dataset) -> dict[str, Any]:
    """report.json as it stands; empty where there is none, or one of another content."""
    if not dataset.folder.exists(REPORT):
        return {}
    found: dict[str, Any] = json.loads(dataset.read_file(REPORT))
    return found if found.get("dataset", {}).get("root_hash") == dataset.manifest.root_hash else {}


def write_report(dataset: Dataset, report: dict[str, Any]) -> None:
    """Writes report.json into the dataset."""
    dataset.folder.write(REPORT, json_bytes(report))


def tokens_url(report: Mapping[str, Any]) -> str | None:
    """Where report.json says that the encoded documents were kept; None for below the dataset."""
    url: str | None = report.get("build", {}).get("settings", {}).get("tokens")
    return url


def _summarize_group(dataset: Dataset, group: Group) -> dict[str, Any]:
    return {
        "mean_length": round(group.tokens / max(1, group.instances), 2),
        "fill": _share(group.tokens, group.instances * group.seq_len),
        "random_next_share": _share(group.random_next, group.instances),
        "masked_share": _share(group.masked, group.tokens),
        **measure_group(dataset, group),
    }


def _measure_coverage(dataset: Dataset) -> dict[str, Any]:
    """Whether every document is in one bucket of every pass, and a sentence that says so, or which pass lacks some."""
    manifest, shards = dataset.manifest, dataset.all_shards
    for (seq_len, pass_index), what in find_uncovered(manifest, shards):
        return {"is_whole": False, "said": f"{pass_folder('train', seq_len, pass_index)}: {what}"}
    return {"is_whole": True, "said": describe_coverage(manifest, shards)}


def _summarize_sources(rows: Sequence[Mapping[str, Any]] | None) -> dict[str, Any] | None:
    """Number and bytes of the input files, and the largest of them."""
    if rows is None:
        return None
    largest = sorted(rows, key=lambda row: (-row["bytes"], row["url"]))[:_NUM_SOURCES]
    return {"files": len(rows), "bytes": sum(row["bytes"] for row in rows), "largest": largest}


def _read_sources(dataset: Dataset) -> list[dict[str, Any]] | None:
    """sources.parquet; None where there is none."""
    if not dataset.folder.exists(SOURCES):
        return None
    rows: list[dict[str, Any]] = (
        pq.ParquetFile(pa.BufferReader(dataset.read_file(SOURCES)))
        .read(use_threads=False)
        .to_pylist()
    )
    return rows


def _format_group(group: dict[str, Any]) -> list[str]:
    sample, quantiles = group["sample"], group["lengths"]["quantiles"]
    shares = ", ".join(f"{kind} {group['masks']['shares'][kind]:.1%}" for kind in MASK_KINDS)
    lengths = ", ".join(f"{name} <= {length}" for name, length in quantiles.items())
    return [
        f"{group['split']} L{group['seq_len']}",
        f"  {group['instances']:,} instances, {group['tokens']:,} tokens, {group['masked']:,} masked"
        f" ({group['masked_share']:.2%}); {group['passes']} pass(es), {group['shards']} shard(s)",
        f"  mean length {group['mean_length']} (fill {group['fill']:.1%}),"
        f" random next {group['random_next_share']:.1%}",
        f"  sampled: {sample['blocks']:,} of {sample['of_blocks']:,} blocks, {sample['instances']:,} instances",
        f"  at masked positions: {shares}; lengths: {lengths}",
    ]


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
