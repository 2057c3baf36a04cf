"""Every setting of every command is on a page as --help has it, and flags and commands that pages name exist."""

import importlib
import re
from pathlib import Path

import pytest

from pipeline.cli import COMMANDS as PIPELINE
from pipeline.command_line.values import known_keys
from scripts.command_reference import PAGE, render
from trainer.cli import COMMANDS as TRAINER

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
PROGRAMS = {"pipeline": PIPELINE, "trainer": TRAINER}
SCRIPTS = [path.read_text() for path in (ROOT / "scripts").rglob("*.py")]
# Flags of what runs beside ours: launchers, Beam's runners, shell scripts, other programs.
OTHERS = {
    "config", "dask_client_address", "dry_run", "environment_config", "environment_type", "fix", "flink",
    "force", "help", "hostfile", "inplace", "job_endpoint", "logdir", "master_addr", "master_port",
    "max_num_workers", "minutes", "module", "net", "nnodes", "no_ssh", "node_rank", "nodes", "nproc_per_node",
    "num_gpus", "partition", "peers_python", "prefix", "runner", "shutdown_timeout", "spark", "worker_pool",
}  # fmt: skip


def keys_of(program, name):
    module, _, settings = PROGRAMS[program][name].settings.partition(":")
    return known_keys(getattr(importlib.import_module(module), settings))


def test_the_page_of_commands_is_what_the_program_says():
    assert PAGE.read_text() == render(), "run python -m scripts.command_reference"


@pytest.mark.parametrize(("program", "name"), [(program, name) for program in PROGRAMS for name in PROGRAMS[program]])
def test_every_setting_of_a_command_is_on_a_page(program, name):
    text = "\n".join(page.read_text() for page in PAGES)
    assert f"python -m {program} {name}" in text
    missing = [key for key in keys_of(program, name) if f"`{key}`" not in text]
    assert not missing


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_flags_and_commands_that_a_page_names_exist(page):
    text = page.read_text()
    keys = {key for program, commands in PROGRAMS.items() for name in commands for key in keys_of(program, name)}
    of_scripts = {flag for text in SCRIPTS for flag in re.findall(r'add_argument\("--([a-z][\w]*)"', text)}
    known = keys | {key.partition(".")[0] for key in keys} | of_scripts | OTHERS
    flags = {flag.rstrip(".") for flag in re.findall(r"(?<![\w-])--([a-z][\w.]*)", text)}
    assert flags <= known, f"no such flags: {flags - known}"
    named = set(re.findall(r"(?:python -m|--module) (pipeline|trainer) ([a-z][a-z-]*)", text))
    assert all(name in PROGRAMS[program] for program, name in named), named


def test_scripts_refuse_abbreviated_flags():
    """As both programs do: an abbreviation means something else as soon as another flag begins so."""
    programs = [path for path in (ROOT / "scripts").rglob("*") if path.suffix == ".py" or path.name == "supervise"]
    made = [text for path in programs for text in path.read_text().split("ArgumentParser(")[1:]]
    assert len(made) > 20
    assert all(text.lstrip().startswith("allow_abbrev=False") for text in made)
