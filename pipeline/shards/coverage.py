"""Whether every document of a dataset is in exactly one bucket of every pass: the seals of each pass add up to its own.

A pass is the train shards of one length and pass, and the validation shards of that length, which
every pass shares.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from pipeline.shards.records import Manifest, Shard
from pipeline.shards.seal import NOTHING, Seal, add_seals

Place = tuple[int, int]
"""seq_len and pass_index."""


def pass_seals(shards: Sequence[Shard]) -> dict[Place, Seal]:
    """What the shards of each pass of each length hold, in both splits."""
    held_out: dict[int, Seal] = {}
    trained: dict[Place, Seal] = {}
    for shard in shards:
        if shard.split == "train":
            place = shard.seq_len, shard.pass_index
            trained[place] = trained.get(place, NOTHING) + shard.seal
        else:
            held_out[shard.seq_len] = held_out.get(shard.seq_len, NOTHING) + shard.seal
    places = sorted(trained.keys() | {(seq_len, 0) for seq_len in held_out})
    return {
        place: add_seals([trained.get(place, NOTHING), held_out.get(place[0], NOTHING)])
        for place in places
    }


def find_uncovered(manifest: Manifest, shards: Sequence[Shard]) -> Iterator[tuple[Place, str]]:
    """Passes whose buckets do not hold every document once, and what they hold instead."""
    for place, found in pass_seals(shards).items():
        if found != manifest.seal:
            yield (
                place,
                f"its shards and those of validation hold {found}, the manifest says {manifest.seal}: a document is in"
                " no bucket of this pass, or in several",
            )


def describe_coverage(manifest: Manifest, shards: Sequence[Shard]) -> str:
    """One sentence for people on a dataset in which no pass is uncovered."""
    lengths = Counter(seq_len for seq_len, _ in pass_seals(shards))
    passes = " and ".join(
        f"{number} pass(es) at length {seq_len}" for seq_len, number in sorted(lengths.items())
    )
    said = f"every one of {manifest.seal.documents:,} documents is in exactly one bucket of each of {passes}"
    is_weighted = any(source["weight"] != 1 for source in manifest.sources)
    return said + (
        "; how often a pass uses it, the weight of its source says" if is_weighted else ""
    )
