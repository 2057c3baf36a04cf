"""The commands of docs/migrating.md run."""

import json
import re
from pathlib import Path
from string import ascii_lowercase

import pytest

from tests.datasets import write_vocab
from tests.page_commands import run_block

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/migrating.md").read_text()
# What makes a command small, by its first words. A command without a row here fails the test.
PHASE = "[{seq_len: 128, global_batch: 4, steps: 1, peak_lr: 1e-4, warmup_steps: 1}]"
SMALLER = {
    "-m pipeline build": "--passes 1 --workers 1",
    "-m trainer pretrain": f"--model.preset tiny --validation.num_instances 4 --phases {PHASE!r}",
    "-m trainer plan": "",
    "-m trainer export": "",
    "-m pipeline export": "",
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with a text as google-research/bert reads it, a vocabulary, and my-text/."""
    folder = tmp_path_factory.mktemp("migrating")
    texts = [
        [f"The {i} brown foxes jumped.", f"Then {i * 7} lazy dogs slept on."] for i in range(60)
    ]
    (folder / "sample_text.txt").write_text("\n\n".join("\n".join(text) for text in texts) + "\n")
    write_vocab(
        folder / "vocab.txt", [f"{mark}{a}" for mark in ("", "##") for a in ascii_lowercase]
    )
    (folder / "my-text").mkdir()
    lines = (json.dumps({"text": "\n".join(text)}) for text in texts)
    (folder / "my-text/a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.engines
def test_the_commands_run_in_order(workplace):
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for line in "".join(blocks).splitlines() if line]
    assert len(lines) == 10
    for line in lines:
        start = next((start for start in SMALLER if line.startswith(f"python {start} ")), None)
        assert start is not None, f"a page has a command that no test runs: {line}"
        learns = start == "-m pipeline build" and "--vocab" not in line
        added = f"{SMALLER[start]}{' --vocab_size 200' if learns else ''}"
        run_block(f"{line} {added}\n", workplace)
    exports = "google-tfrecord/_export.json", "hf-parquet/_export.json"
    datasets = "google/manifest.json", "mosaic/manifest.json"
    for name in (*datasets, *exports, "hf-model/model.safetensors"):
        assert (workplace / name).exists(), name
