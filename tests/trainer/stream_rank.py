"""One rank of a test: opens the data with the others, reads some steps through its node's cache, prints what it read.

python -m tests.trainer.stream_rank URL CACHE_OF_NODE_0,CACHE_OF_NODE_1,... RANKS_OF_A_NODE
GLOBAL_BATCH STEPS
"""

import json
import sys
from itertools import pairwise

from pipeline.shards.dataset import Dataset
from trainer.order.source import Mixture
from trainer.pretrain.run import open_data
from trainer.process.ranks import start_ranks, stop_ranks
from trainer.reading import cache
from trainer.reading.settings import Reading
from trainer.stream.step import StepLoader


def read_steps(
    mixture: Dataset | Mixture,
    rank: int,
    world_size: int,
    global_batch: int,
    num_steps: int,
    reading: Reading,
) -> list[list[list[int]]]:
    """The tokens of every instance of this rank's share of each step."""
    sizes = {
        "rank": rank,
        "world_size": world_size,
        "global_batch": global_batch,
        "micro_tokens": 8192,
        "seed": 1,
    }
    with StepLoader(
        mixture, "train", 8192, **sizes, num_steps=num_steps, reading=reading
    ) as loader:
        return [
            [tokens for micro in step.micro_batches for tokens in instances(micro)]
            for step in loader
        ]


def instances(micro):
    return [
        micro.input_ids[start:stop].tolist() for start, stop in pairwise(micro.cu_seqlens.tolist())
    ]


def main():
    url, caches, node_ranks, global_batch, num_steps = sys.argv[1:]
    cache.STRETCH_BYTES = 3000
    ranks = start_ranks()
    mixture = open_data([url], None, None, ranks)
    own = caches.split(",")[ranks.rank // int(node_ranks)]
    reading = Reading(num_threads=3, cache_dir=own)
    found = read_steps(
        mixture, ranks.rank, ranks.world_size, int(global_batch), int(num_steps), reading
    )
    stop_ranks()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
