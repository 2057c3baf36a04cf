"""docs/tutorial.md: its small form runs as it stands, smaller still, and gives what it says."""

import json
import re
import shlex
import shutil
from itertools import islice
from pathlib import Path

import pytest
import zstandard

from pipeline.cli import COMMANDS as PIPELINE
from pipeline.command_line.program import parse_settings
from tests.page_commands import run_block
from trainer.cli import COMMANDS as TRAINER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text()
SMALL, REAL = PAGE.split("\n# The real form\n")

# What makes the small form smaller: words that the page must have, and what stands in their place.
SMALLER = {
    "--max_bytes 8000000": "--max_bytes 300000",
    "configs/data/demo.yaml": "configs/data/demo.yaml --vocab_size 1000 --workers 1",
    "--steps 300 60 \\\n": "--steps 3 2 --validation.num_instances 8 \\\n",
    "--search_epochs 2": "--search_epochs 1",
    "curl -fL -o tutorial/dev-v1.1.json": "cp given.json tutorial/dev-v1.1.json #",
}
CUT = 150
SNIPPET_TEXT = "The school was founded in 1871 by Ada Miller. Since 2003 it is led by John Smith."


def blocks(text):
    return re.findall(r"```bash\n(.*?)```", text, re.DOTALL)


def smaller(page):
    for words, fewer in SMALLER.items():
        assert words in page, f"docs/tutorial.md has no {words!r} any more"
        page = page.replace(words, fewer)
    return page


def write_squad(shared_data, path):
    """Real articles: the beginning of a first paragraph, and a whole one to be read in windows."""
    packed = (shared_data / "data/squad/squad_v11_derived_half_dev.json.zst").read_bytes()
    content = json.loads(zstandard.ZstdDecompressor().decompressobj().decompress(packed))
    for article in content["data"]:
        first, second, *_ = article["paragraphs"]
        beginning = first["context"][:CUT]
        answered = (q for q in first["qas"] if all(a["text"] in beginning for a in q["answers"]))
        questions = [mend(each, beginning) for each in islice(answered, 4)]
        short = {"context": beginning, "qas": questions}
        article["paragraphs"] = [short, {**second, "qas": second["qas"][:1]}]
    path.write_text(json.dumps(content))


def mend(question, context):
    """Answers where they first stand."""
    texts = [each["text"] for each in question["answers"]]
    answers = [{"text": text, "answer_start": context.index(text)} for text in texts]
    return {**question, "answers": answers}


@pytest.fixture(scope="module")
def printed(shared_data, tmp_path_factory):
    """The folder, and what each block of the small form printed."""
    folder = tmp_path_factory.mktemp("tutorial")
    for name in ("configs", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    write_squad(shared_data, folder / "given.json")
    outputs = [run_block(block, folder) for block in blocks(smaller(SMALL))]
    return folder / "tutorial", "\n".join(outputs), outputs


@pytest.mark.engines
def test_the_small_form_from_text_to_answers(printed):
    folder, text, outputs = printed
    questions = read_questions(folder / "dev.json")
    counts = f"2 articles, {len(questions)} qu"
    for words in ("sound, ", "step 5: validation MLM loss", "This model has seen", counts):
        assert words in text
    results = json.loads((folder / "answers/results.json").read_text())
    metrics = results["best"]["metrics"]["dev"]
    assert 0 <= metrics["exact"] <= metrics["f1"] <= 100
    assert results["data"]["validation"][0]["examples"] == len(questions)
    assert results["data"]["validation"][0]["questions_in_windows"] >= 1
    predictions = json.loads((folder / "answers/predictions/dev/predictions.json").read_text())
    assert predictions.keys() == questions
    answer = outputs[-1].strip()
    assert answer
    assert answer in SNIPPET_TEXT


def read_questions(path):
    """The ids of questions."""
    articles = json.loads(path.read_text())["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    return {each["id"] for paragraph in paragraphs for each in paragraph["qas"]}


def test_the_commands_of_the_real_form_are_understood(tmp_path, monkeypatch):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    names = set()
    for line in "\n".join(blocks(REAL)).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["cp"]:
            shutil.copy(*words[1:])
        if words[:1] in ([], ["cp"], ["curl"]):
            continue
        program, name, *arguments = words[words.index("-m" if "-m" in words else "--module") + 1 :]
        parse_settings(name, {"pipeline": PIPELINE, "trainer": TRAINER}[program][name], arguments)
        names.add((program, name))
    assert {("pipeline", "build"), ("trainer", "pretrain"), ("trainer", "finetune")} <= names
