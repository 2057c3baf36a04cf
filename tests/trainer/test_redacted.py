"""A redacted dataset is trained on like any other, even if a shard has lost all its instances."""

import itertools
from collections import Counter

from pipeline.shards.block import to_record_batch
from pipeline.shards.dataset import open_dataset, read_blocks
from tests.datasets import write_corpus
from tests.pipeline.programs import run
from trainer.stream.pipeline import planned_steps


def test_a_pass_is_read_once(tmp_path):
    """A step of as many instances as a pass has reads exactly that pass."""
    corpus = write_corpus(tmp_path, 60)
    flags = ("--vocab", corpus / "vocab.txt", "--passes", 1, "--seq_lens", 64, "--num_buckets", 4)
    flags = (*flags, "--workers", 1, "--output", tmp_path / "data")
    assert run("build", "--input", corpus / "a.jsonl", *flags) == 0
    ids = (tmp_path / "data/documents.ids").read_bytes()
    documents = [ids[start : start + 16].hex() for start in range(0, len(ids), 16)]
    listed = [document for document in documents if document[0] in "89ab"]
    (tmp_path / "list").write_text("".join(f"{document}\n" for document in listed))
    flags = ("--documents", tmp_path / "list", "--output", tmp_path / "new")
    assert run("redact", tmp_path / "data", *flags) == 0

    new = open_dataset(str(tmp_path / "new"))
    shards = new.shards("train", 64, 0)
    assert [shard.instances > 0 for shard in shards] == [True, True, False, True]
    blocks = [block for shard in shards for block in read_blocks(new, shard)]
    rows = [row["input_ids"] for block in blocks for row in to_record_batch(block).to_pylist()]
    sizes = {"rank": 0, "world_size": 1, "global_batch": len(rows), "micro_tokens": 4096}
    steps = planned_steps(new.url, "train", 64, **sizes, seed=1, num_steps=1, num_lanes=3)
    [step] = list(steps)
    read = Counter(
        tuple(batch.input_ids[start:stop].tolist())
        for batch in step.micro_batches
        for start, stop in itertools.pairwise(batch.cu_seqlens.tolist())
    )
    assert read == Counter(map(tuple, rows))
