"""The commands of docs/forgetting.md run, and answer."""

import json
import re
from pathlib import Path

import pytest

from tests.page_commands import run_block
from trainer.forget.certificate import hash_id

PAGE = (Path(__file__).parents[2] / "docs/forgetting.md").read_text()
ASK = PAGE.partition("\n## Ask any step, any document\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"```bash\n(.*?)```", ASK, re.DOTALL)
FORGET = PAGE.partition("\n## Forget any document\n")[2].partition("\n## ")[0]
FORGETTING, CHECKING = re.findall(r"```bash\n(.*?)```", FORGET, re.DOTALL)

REDACT = PAGE.partition("\n## Redact a dataset\n")[2]
[REDACTING] = re.findall(r"```bash\n(.*?)```", REDACT, re.DOTALL)


@pytest.mark.engines
def test_a_run_is_asked(tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    said = [run_block(block, tmp_path, **cache) for block in BLOCKS]
    assert "run: finished, 20 steps" in said[0]
    assert "step 7, phase 0, length 32" in said[1]
    assert len(re.findall(r"^ +\d+  [0-9a-f]{16}  ", said[1], re.MULTILINE)) == 16
    assert re.search(r"^  [0-9a-f]{16}  input \(en\), .*notes.jsonl:\d+$", said[1], re.MULTILINE)
    assert (tmp_path / "steps.html").read_text().count("<article") == 48
    assert re.search(r"from      input \(en\), .*/notes.jsonl:3$", said[2], re.MULTILINE)
    records = [json.loads(line) for line in (tmp_path / "reads.jsonl").read_text().splitlines()]
    assert records[0]["place"].endswith("/notes.jsonl:3")
    assert records[0]["reads"] == len(records) - 1
    assert f"{records[0]['reads']} times in {records[0]['steps']} steps" in said[2]
    assert said[3] == ""
    assert "step 7, 16 instances: the norm of its gradient\n" in said[4]
    assert len(re.findall(r"^ +\d+ +-?\d+\.\d%  ", said[4], re.MULTILINE)) == 10
    assert re.search(r"^  [0-9a-f]{16}  input \(en\), .*notes.jsonl:\d+$", said[4], re.MULTILINE)
    asked = records[0]
    said = run_block(FORGETTING, tmp_path, **cache)
    plan = f"steps of run have read their instances {asked['reads']} times, the first in step"
    assert said.count(f"1 document(s) to forget: {plan} {records[1]['step']}") == 2
    assert "not covered: The vocabulary of data stays as it is. It was learned from the" in said
    assert "near-duplicates in data: 0 document(s) at least 0.8 like one of them\n" in said
    assert "run2: finished, 20 steps" in said
    page = (tmp_path / "run2/certificate.html").read_text()
    assert hash_id(int(asked["id"][:16], 16)) in page
    assert asked["id"][:16] not in page
    assert asked["id"][:16] in (tmp_path / "run2/left_out.txt").read_text()
    said = run_block(CHECKING, tmp_path, **cache)
    assert re.findall("^(held|not held|cannot be checked)  ", said, re.MULTILINE) == ["held"] * 10
    said = run_block(REDACTING, tmp_path, **cache)
    assert said.count("1 document(s) of reads.jsonl: ") == 2
    assert "none of the 1 document(s) of reads.jsonl is in it" in said
    assert (tmp_path / "data2/manifest.json").is_file()
