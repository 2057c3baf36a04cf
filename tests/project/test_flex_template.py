"""The Flex Template's parameters are those of its program, and the program makes token parts."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import Document
from pipeline.command_line.help import field_help
from pipeline.command_line.hints import choices_of, hints_of
from pipeline.settings import BuildSettings
from scripts.dataflow.write_tokens import SETTINGS, make_parser, read_text
from tests.datasets import write_corpus
from tests.pipeline.programs import root_hash, run

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "scripts/dataflow/write_tokens.py"
METADATA = json.loads(PROGRAM.with_suffix(".json").read_text())
PARAMETERS = {each["name"]: each for each in METADATA["parameters"]}
OF_BEAM = {"sdk_container_image"}


def test_the_template_has_the_parameters_of_its_program():
    actions = [each for each in make_parser()._actions if each.dest != "help"]
    assert PARAMETERS.keys() - OF_BEAM == {each.dest for each in actions}
    for action in actions:
        assert PARAMETERS[action.dest]["isOptional"] is not action.required, action.dest
    keys = {"name", "label", "helpText", "isOptional", "regexes"}
    assert all(each.keys() <= keys for each in METADATA["parameters"])
    assert METADATA.keys() == {"name", "description", "parameters"}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_says_what_it_says_elsewhere(name):
    parameter = PARAMETERS[name]
    assert parameter["helpText"].startswith(field_help(BuildSettings, name))
    [pattern] = parameter["regexes"]
    hint, default = hints_of(BuildSettings)[name], BuildSettings("out")
    for choice in choices_of(hint) or {str: ["en"], int: ["20"]}.get(hint, []):
        assert re.fullmatch(pattern, choice), choice
    value = getattr(default, name)
    if isinstance(value, bool):
        assert re.fullmatch(pattern, str(value).lower())
    assert not re.fullmatch(pattern, "no such value!")


def test_only_the_store_of_google_is_a_place():
    for name in ("input", "output", "vocab"):
        [pattern] = PARAMETERS[name]["regexes"]
        assert re.fullmatch(pattern, "gs://bucket/a/vocab.txt"), name
        assert not re.fullmatch(pattern, "s3://bucket/vocab.txt"), name


def test_a_line_without_the_text_is_named_with_its_file():
    assert read_text(("gs://b/a.jsonl", '{"body": "Hi."}'), "body") == Document(
        "Hi.", "gs://b/a.jsonl"
    )
    for line in ('{"text": "Hi."}', "Hi.", '{"body": 7}', "[1]", ""):
        said = rf"^gs://b/a\.jsonl: found the line {re.escape(repr(line))}, expected a JSON object"
        with pytest.raises(ValueError, match=said):
            read_text(("gs://b/a.jsonl", line), "body")


@pytest.mark.processes
def test_the_program_and_shards_make_the_dataset_of_a_build(tmp_path):
    corpus, vocab = write_corpus(tmp_path, 120) / "a.jsonl", tmp_path / "vocab.txt"
    common = ["--vocab", vocab, "--min_characters", "20", "--lower_case", "true"]
    flags = [*common, "--seq_lens", "64", "--passes", "1", "--workers", "1"]
    assert run("build", "--input", corpus, "--output", tmp_path / "built", *flags) == 0
    words = ["--input", corpus, "--output", tmp_path / "written", *common]
    workers = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    command = [sys.executable, PROGRAM, *words, "--runner=FnApiRunner", *workers]
    ran = subprocess.run(map(str, command), cwd="/", capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert run("shards", "--output", tmp_path / "written", *flags) == 0
    assert root_hash(tmp_path / "written") == root_hash(tmp_path / "built")
