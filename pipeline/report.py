"""What a dataset holds, in numbers: counts, drops by reason, lengths, fill, masks. As report.json and as text."""

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np

from pipeline.inspect import describe_masks, read_blocks
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import Group

REPORT = "report.json"
STAGES = ("vocabulary", "tokens", "shards")
MASK_KINDS = ("mask", "kept", "random")
SAMPLE_BLOCKS = 64
_NUM_BINS = 8


def summarize_dataset(dataset: Dataset) -> dict[str, Any]:
    """Totals of the whole dataset, and shares measured on the first blocks of every split and length."""
    manifest = dataset.manifest
    return {
        "root_hash": manifest.root_hash,
        "settings": dict(manifest.settings),
        "vocab_size": manifest.vocab_size,
        "counters": dict(manifest.counters),
        "unknown_rate": _share(manifest.counters.get("unknown_tokens", 0), manifest.counters.get("tokens", 0)),
        "bytes": sum(shard.num_bytes for shard in dataset.all_shards),
        "groups": [asdict(group) | _summarize_group(dataset, group) for group in manifest.groups],
    }


def format_report(report: dict[str, Any]) -> str:
    """report.json for people."""
    dataset, build = report["dataset"], report.get("build", {})
    lines = [f"root hash   {dataset['root_hash']}", f"vocabulary  {dataset['vocab_size']:,} entries", "documents"]
    lines += [f"  {name.replace('_', ' '):<22} {count:>14,}" for name, count in dataset["counters"].items()]
    lines.append(f"  {'unknown tokens':<22} {dataset['unknown_rate']:>14.4%}")
    for group in dataset["groups"]:
        lines += _format_group(group)
    if seconds := build.get("seconds"):
        lines.append("time        " + ", ".join(f"{stage} {seconds[stage]:.1f} s" for stage in STAGES))
    return "\n".join(lines)


def read_report(dataset: Dataset) -> dict[str, Any]:
    """report.json; made anew, without timings, where the dataset has none."""
    if not dataset.filesystem.exists(f"{dataset.root}/{REPORT}"):
        return {"dataset": summarize_dataset(dataset)}
    report: dict[str, Any] = json.loads(dataset.read_file(REPORT))
    return report


def _summarize_group(dataset: Dataset, group: Group) -> dict[str, Any]:
    masks: Counter[str] = Counter()
    lengths = np.zeros(0, np.int64)
    sampled = 0
    for shard in dataset.shards(group.split, group.seq_len, 0):
        for block in read_blocks(dataset, shard):
            if sampled == SAMPLE_BLOCKS:
                break
            sampled += 1
            masks.update(describe_masks(block, dataset.manifest.special_ids["mask"]))
            lengths = np.concatenate([lengths, np.diff(block.offsets)])
    counts, edges = np.histogram(lengths, bins=_NUM_BINS, range=(0, group.seq_len))
    return {
        "mean_length": round(group.tokens / max(1, group.instances), 2),
        "fill": _share(group.tokens, group.instances * group.seq_len),
        "random_next_share": _share(group.random_next, group.instances),
        "masked_share": _share(group.masked, group.tokens),
        "sampled_masks": {kind: _share(masks[kind], masks.total()) for kind in MASK_KINDS},
        "sampled_lengths": {"up_to": edges[1:].astype(int).tolist(), "instances": counts.tolist()},
    }


def _format_group(group: dict[str, Any]) -> list[str]:
    masks = ", ".join(f"{kind} {group['sampled_masks'][kind]:.1%}" for kind in MASK_KINDS)
    sample = group["sampled_lengths"]
    most = max(1, *sample["instances"])
    bars = [
        f"    <= {edge:>4} {'#' * round(40 * count / most):<40} {count:,}"
        for edge, count in zip(sample["up_to"], sample["instances"], strict=True)
    ]
    return [
        f"{group['split']} L{group['seq_len']}",
        f"  {group['instances']:,} instances, {group['tokens']:,} tokens, {group['masked']:,} masked"
        f" ({group['masked_share']:.2%}); {group['passes']} pass(es), {group['shards']} shard(s)",
        f"  mean length {group['mean_length']} (fill {group['fill']:.1%}),"
        f" random next {group['random_next_share']:.1%}",
        f"  at masked positions: {masks}",
        "  lengths of the first instances",
        *bars,
    ]


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
