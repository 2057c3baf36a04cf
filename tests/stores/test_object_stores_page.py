"""The commands of docs/object-stores.md, run against two stores of S3's kind."""

import json
import re

import pytest

from pipeline.storage.folder import Folder
from tests.loaded_python import ROOT
from tests.page_commands import run_block
from tests.stores.conftest import s3_options

pytestmark = pytest.mark.engines
PAGE = (ROOT / "docs/object-stores.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("store", ["swift_port", "moto_port"])
def test_the_page_runs(request, tmp_path, texts, store):
    port = request.getfixturevalue(store)
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (tmp_path / "text.jsonl").write_text("".join(lines))
    first, *others = (block.replace("127.0.0.1:9000", f"127.0.0.1:{port}") for block in BLOCKS)
    *exports, commands = re.fullmatch(r"(export .*\n)(export .*\n)((?:.*\n)+)", first).groups()
    pairs = [word for line in exports for word in line.split()[1:]]
    variables = dict(pair.split("=", 1) for pair in pairs) | {"CUDA_VISIBLE_DEVICES": ""}
    assert "sound" in run_block(commands, tmp_path, **variables)
    options, *runs = others
    echo, rest = options.split("\n", 1)
    found = re.fullmatch(r"echo '(.*)' >(store\.json)", echo)
    (tmp_path / found[2]).write_text(found[1])
    said = run_block(rest, tmp_path, CUDA_VISIBLE_DEVICES="")
    assert "root hash" in said
    assert "s3://corpus/page/run/checkpoints/step-00000002 on s3://corpus/page/data" in said
    for block in runs:
        run_block(block, tmp_path, **variables)
    assert "<svg" in (tmp_path / "run.html").read_text()
    names = set(Folder("s3://corpus/page", s3_options(port)).list())
    assert {"vectors.parquet", "model/model.safetensors", "run/checkpoints/newest.json"} <= names
