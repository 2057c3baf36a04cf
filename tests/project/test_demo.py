"""scripts/demo on real articles, small: every step runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from tests.ports import free_port

ROOT = Path(__file__).parents[2]


def run_demo(*arguments):
    port = str(free_port())
    place = {"VENV": sys.prefix, "CUDA_VISIBLE_DEVICES": "", "MASTER_PORT": port}
    command = [ROOT / "scripts/demo", *map(str, arguments)]
    ran = subprocess.run(
        command, env=os.environ | place, capture_output=True, text=True, check=False, timeout=900
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.mark.engines
def test_articles_become_a_model(shared_data, tmp_path):
    packed = (shared_data / "data/wiki_en/wiki_en_00.txt.zst").open("rb")
    with packed, zstandard.ZstdDecompressor().stream_reader(packed) as text:
        beginning = text.read(1_000_000)
    articles = tmp_path / "articles.txt"
    articles.write_bytes(beginning[: beginning.rindex(b"</doc>")] + b"</doc>\n")
    printed = run_demo("--input", articles, "--minutes", 1, "--output", tmp_path / "demo")
    assert "sound" in printed
    assert "label: " in printed
    assert "BERT saw 128 billion" in printed
    lines = (tmp_path / "demo/run/metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    validation = [row for row in rows if row["split"] == "validation"]
    # ln 8,000 and logits at random: it knows nothing yet; after 30 steps some of the frequencies.
    assert rows[0]["mlm_loss"] == pytest.approx(9.4, abs=0.2)
    assert validation[-1]["mlm_loss"] < 7.8
    assert (tmp_path / "demo/hf/model.safetensors").is_file()
