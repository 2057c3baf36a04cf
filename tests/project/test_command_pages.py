"""Every setting is on a page as --help has it; commands that pages print are understood."""

import re
import shlex
import shutil
import typing
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import COMMANDS as PIPELINE
from pipeline.command_line.help import field_groups, field_help
from pipeline.command_line.hints import (
    choices_of,
    hints_of,
    is_mapping,
    item_of,
    kind_of,
    known_keys,
    section_of,
)
from pipeline.command_line.program import load, parse_settings
from pipeline.command_line.words import parse_words
from pipeline.settings import BuildSettings
from pipeline.stages.build import run_shards, run_tokens, run_vocab
from scripts.command_reference import PAGE, render
from trainer.cli import COMMANDS as TRAINER

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
PROGRAMS = {"pipeline": PIPELINE, "trainer": TRAINER}
SETTINGS = [load(each.settings) for each in (*PIPELINE.values(), *TRAINER.values())]
SCRIPTS = "\n".join(path.read_text() for path in (ROOT / "scripts").rglob("*.py"))
# Flags of what runs beside ours: launchers, Beam's runners, shell scripts, other programs.
OTHERS = """
add artifact artifacts bundle_size cores dask_client_address dask_partition_size dry_run
environment_cache_millis environment_config environment_type exclude expansion experiments
extra_package flink force help host hostfile inplace job job_endpoint job_port job_server_timeout
json lines logdir master_addr master_port max_bundle_size max_cache_memory_usage_mb max_num_workers
memory module net nnodes no no_ssh node_rank nodes
nproc_per_node nthreads num_gpus nworkers object_reuse parallelism partition port prefix project
region repo resource_hint runner running_job sdk_container_image sdk_location
sdk_worker_parallelism serve_http service_port setup_file shutdown_timeout spark streaming
temp_location worker_pool
"""
OF_OTHER_PROGRAMS = re.compile(r"^ *(?:gcloud|docker) (?:.*\\\n)*.*$", re.MULTILINE)


def test_the_page_of_commands_is_what_the_program_says():
    assert PAGE.read_text() == render(), "run python -m scripts.command_reference"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_flags_and_commands_that_a_page_names_exist(page):
    text = OF_OTHER_PROGRAMS.sub("", page.read_text())
    keys = {key for settings in SETTINGS for key in known_keys(settings)}
    of_scripts = {*re.findall(r'add_argument\(\s*"--([a-z][\w]*)"', SCRIPTS)}
    known = keys | {key.partition(".")[0] for key in keys} | of_scripts | {*OTHERS.split()}
    flags = {flag.rstrip(".") for flag in re.findall(r"(?<![\w-])--([a-z][\w.]*)", text)}
    assert flags <= known, f"no such flags: {flags - known}"
    named = set(re.findall(r"(?:python -m|--module) (pipeline|trainer) ([a-z][a-z-]*)", text))
    assert all(name in PROGRAMS[program] for program, name in named), named


def printed_commands(page):
    """Returns (program, command, arguments) of each line of ours in the blocks of a page."""
    blocks = re.findall(r"^```(?:bash)?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    commands = []
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        match = re.match(r"\w.*(?:-m|--module) (pipeline|trainer) ([a-z-]+)( .*|$)", line)
        if match and "..." not in line:
            arguments = shlex.split(match[3], comments=True)
            ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
            commands.append((match[1], match[2], ours))
    return commands


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_every_printed_command_is_understood(page, tmp_path, monkeypatch):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    # Settings that a page tells its reader to write.
    shutil.copy(ROOT / "configs/data/wikipedia-books.yaml", tmp_path / "text.yaml")
    shutil.copy(ROOT / "configs/pretrain/bert-base.yaml", tmp_path / "wsd.yaml")
    monkeypatch.chdir(tmp_path)
    for program, name, arguments in printed_commands(page):
        parse_settings(name, PROGRAMS[program][name], arguments)


def test_printed_commands_are_found():
    assert sum(len(printed_commands(page)) for page in PAGES) > 80
    [build] = printed_commands(ROOT / "docs/runners.md")[:1]
    assert build[:2] == ("pipeline", "build")
    assert build[2][-2:] == ["--workers", "8"]


def settings_classes():
    """Every settings class of both programs, those of sections and of the items of lists too."""
    found, waiting = [], [*SETTINGS]
    while waiting:
        if (each := waiting.pop()) not in found:
            found.append(each)
            hints = typing.get_type_hints(each).values()
            waiting += [inner for hint in hints if (inner := section_of(item_of(hint) or hint))]
    return found


def examples_of(hint):
    """Returns two values of a type, each as words of a flag, as YAML and as Python has it."""
    scalars = {
        str: [("a", "a", "a"), ("b", "'b'", "b")],
        int: [("7", "7", 7), ("8", "'8'", 8)],
        float: [("0.5", "0.5", 0.5), ("1e-4", "1e-4", 1e-4)],
        bool: [("false", "no", False), ("true", "on", True)],
        Any: [("[1, b]", "[1, b]", [1, "b"]), ("{c: 1.5}", "{c: 1.5}", {"c": 1.5})],
    }
    kind = kind_of(hint)
    if item := item_of(kind):
        return [(f"{flag} {flag}", f"[{yaml}, {yaml}]", [value, value])
                for flag, yaml, value in examples_of(item)]  # fmt: skip
    if is_mapping(kind):
        return [(f"'{{k: {yaml}}}'", f"{{k: {yaml}}}", {"k": value})
                for _, yaml, value in examples_of(typing.get_args(kind)[1])]  # fmt: skip
    if choices_of(kind):
        choices = typing.get_args(kind)
        return [(str(choice), str(choice), choice) for choice in (choices[0], choices[-1])]
    return scalars[kind]


@pytest.mark.parametrize("settings", settings_classes(), ids=lambda settings: settings.__name__)
def test_every_field_is_set_by_flag_by_file_and_by_a_flag_over_a_file(settings, tmp_path):
    file = tmp_path / "file.yaml"
    for name, hint in hints_of(settings).items():
        if section_of(item_of(hint) or hint):
            continue  # its fields are set by keys of their own
        alone = make_dataclass("Alone", [(name, hint, "default")])
        (flag, yaml, value), (other_flag, _, other_value) = examples_of(hint)
        file.write_text(f"{name}: {yaml}\n")
        for words, expected in {
            f"--{name} {flag}": value,
            f"--config {file}": value,
            f"--{name} {other_flag} --config {file}": other_value,
        }.items():
            given = getattr(parse_words("program", alone, (), shlex.split(words)), name)
            assert (given, type(given)) == (expected, type(expected)), (words, yaml)


@pytest.mark.parametrize("settings", settings_classes(), ids=lambda settings: settings.__name__)
def test_every_field_has_a_text_that_stands_alone_and_tells_each_choice_once(settings):
    named = [name for _, names in field_groups(settings) for name in names]
    assert len(named) == len({*named})
    assert {*named} <= {*typing.get_type_hints(settings)}
    for name, hint in typing.get_type_hints(settings).items():
        text = field_help(settings, name)
        assert re.match(r"[A-Z\[].*[.:)]$", text), f"{name}: {text!r}"
        assert not text.startswith(("Of ", "As ")), f"{name}: {text!r}"
        words = re.findall(r"[\w+-]+", text)
        assert all(words.count(choice) == 1 for choice in choices_of(hint)), f"{name}: {text!r}"


def test_help_of_a_stage_shows_what_the_stage_looks_at(tmp_path):
    looked = set()

    class Watched(BuildSettings):
        def __getattribute__(self, key):
            looked.add(key)
            return super().__getattribute__(key)

    text = tmp_path / "input.txt"
    text.write_text("The cat sat on the mat. It was happy.\n\nA dog ran. The cat saw it.\n" * 9)
    given = {"output": str(tmp_path / "data"), "input": [str(text)], "vocab_size": 100}
    settings = Watched(**given, format="text-blank-lines", workers=1)
    fields = {*typing.get_type_hints(BuildSettings)}
    # A vocabulary asks of these folders only whether they are input.
    listed_only = {"vocab": {"language", "tokens"}, "tokens": set(), "shards": {"input"}}
    of_a_vocabulary = {"vocab_size", "num_unused", "alphabet_size"}
    for name, run in {"vocab": run_vocab, "tokens": run_tokens, "shards": run_shards}.items():
        looked.clear()
        run(settings, ())
        unused = {*PIPELINE[name].unused}
        assert looked & fields & unused <= listed_only[name], name
        # The most [UNK] is asked for only where there are some.
        only_where_asked = {"task_overlap", "sources", "allow_code", "max_unknown"}
        only_where_asked |= of_a_vocabulary if name != "vocab" else set()
        assert fields - looked - unused <= only_where_asked, name
