"""A vocabulary of more than 65,536 pieces, from text to an exported model: ids of 32 bits all the way."""

import json
import zipfile

import numpy as np
import pytest

from pipeline.cli import COMMANDS as PIPELINE_COMMANDS
from pipeline.command_line.program import run_program
from pipeline.shards.dataset import open_dataset, read_blocks

VOCAB_SIZE = 119_547  # of multilingual BERT


@pytest.fixture(scope="module")
def dataset(shared_data, tmp_path_factory):
    """The declaration of human rights in every twelfth of some 390 languages."""
    folder = tmp_path_factory.mktemp("large")
    with zipfile.ZipFile(shared_data / "data/udhr2/udhr2.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".txt"))[::12]
        texts = [json.dumps({"text": archive.read(name).decode()}) for name in names]
    (folder / "rights.jsonl").write_text("\n".join(texts) + "\n")
    vocab = shared_data / "data/bert_vocab/bert-base-multilingual-cased-vocab.txt"
    flags = f"--vocab {vocab} --lower_case false --seq_lens 64 --passes 1 --workers 1".split()
    build = ["build", "--input", f"{folder}/rights.jsonl", "--output", f"{folder}/data", *flags]
    for arguments in (build, ["verify", f"{folder}/data"]):
        assert run_program("python -m pipeline", "Tests.", PIPELINE_COMMANDS, arguments) == 0
    return open_dataset(str(folder / "data"))


@pytest.mark.processes
def test_blocks_hold_the_text_in_32_bits(dataset):
    assert dataset.manifest.vocab_size == VOCAB_SIZE
    [shard] = dataset.shards("train", 64, 0)
    blocks = list(read_blocks(dataset, shard))
    assert {(block.input_ids.dtype, block.masked_lm_ids.dtype) for block in blocks} == {
        (np.dtype(np.uint32),) * 2
    }
    labels = np.concatenate([block.masked_lm_ids for block in blocks])
    assert (labels > 65_535).mean() > 0.05
    assert (labels == 100).mean() < 0.05, "[UNK]"
    shown = np.concatenate([block.input_ids[block.masked_indices] for block in blocks])
    is_random = (shown != 103) & (shown != labels)
    assert 0.3 < (shown[is_random] > 65_535).mean() < 0.6, (
        "random replacements come from the whole vocabulary"
    )
