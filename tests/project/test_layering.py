"""Who may import whom: documents -> shards -> training, and never back."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STANDARD = {*sys.stdlib_module_names, "__future__"}

# From the ground up: a room, and the rooms above it in this table that it may import; those of its
# own package begin with a dot. A file that lies in no room is one by itself.
ROOMS = {
    "tokenizer": "",
    "pipeline.seeds": "",
    "pipeline.machine": "",
    "pipeline.interrupts": "",
    "pipeline.storage": "",
    "pipeline.pages": "",
    "pipeline.command_line": ".interrupts .storage",
    "pipeline.shards": ".storage",
    "pipeline.wiki": "tokenizer",
    "pipeline.documents": "tokenizer .seeds .storage .wiki",
    "pipeline.text": "tokenizer .seeds .storage .documents",
    "pipeline.tokens": "tokenizer .storage .shards .documents .text",
    "pipeline.instances": "tokenizer .seeds .shards .documents .tokens",
    "pipeline.settings": "tokenizer .machine .storage .documents .text .tokens .instances",
    "pipeline.inspect": "tokenizer .storage .pages .shards .tokens .instances",
    "pipeline.export": ".storage .shards .instances",
    "pipeline.jobs": (
        "tokenizer .machine .interrupts .storage .shards .documents .text .tokens .instances"
    ),
    "pipeline.stages": (
        "tokenizer .machine .storage .pages .shards .documents .text .tokens .instances .settings"
        " .inspect .jobs"
    ),
    "pipeline.redaction": ".machine .storage .shards .tokens .inspect .jobs .stages",
    "pipeline.transforms": (
        ".storage .command_line .shards .documents .text .tokens .settings .jobs .stages"
    ),
    "pipeline.cli": (
        ".machine .interrupts .storage .command_line .shards .tokens .settings .inspect .export"
        " .jobs .stages .redaction"
    ),
    "pipeline.__main__": ".interrupts .cli",
    "trainer.conll": "pipeline.storage",
    "trainer.process": "pipeline.machine pipeline.interrupts",
    "trainer.model": "pipeline.seeds",
    "trainer.stream.order": "pipeline.storage pipeline.shards",
    "trainer.stream.reading.settings": "",
    "trainer.stream.batches": "tokenizer pipeline.seeds pipeline.shards pipeline.instances .model",
    "trainer.stream.reading": (
        "pipeline.storage pipeline.shards .stream.order .stream.reading.settings .stream.batches"
    ),
    "trainer.stream": (
        "pipeline.storage pipeline.shards .stream.order .stream.reading.settings .stream.batches"
        " .stream.reading"
    ),
    "trainer.minimal_pairs": "tokenizer pipeline.storage pipeline.documents .model",
    "trainer.conversion": "tokenizer pipeline.storage .model",
    "trainer.optim": "",
    "trainer.engine": "pipeline.seeds pipeline.command_line .process .stream.batches .model .optim",
    "trainer.settings": ".model .optim",
    "trainer.runs": "tokenizer pipeline.storage pipeline.shards .stream.order .model .settings",
    "trainer.checkpoints": "pipeline.storage .process .optim .engine .settings .runs",
    "trainer.guards": "pipeline.storage .process .optim .engine .settings",
    "trainer.watch": "pipeline.storage pipeline.pages .process .model .engine .settings .runs",
    "trainer.ask": (
        "tokenizer pipeline.storage pipeline.pages pipeline.shards pipeline.tokens"
        " pipeline.inspect .stream.order .stream.batches .stream .settings .runs .checkpoints"
        " .guards .watch"
    ),
    "trainer.pretrain": (
        "pipeline.storage pipeline.shards .process .stream.order .stream.reading.settings"
        " .stream.batches .stream .model .minimal_pairs .conversion .optim .engine .settings .runs"
        " .checkpoints .guards .watch"
    ),
    "trainer.forget": (
        "pipeline.storage pipeline.pages pipeline.command_line pipeline.shards pipeline.tokens"
        " pipeline.inspect .process .stream.order .stream .settings .runs .checkpoints .ask"
        " .pretrain"
    ),
    "trainer.replay": (
        "pipeline.storage pipeline.shards pipeline.inspect .process .stream.order .stream.batches"
        " .stream .model .engine .settings .runs .checkpoints .ask .pretrain .forget"
    ),
    "trainer.inference": (
        "tokenizer pipeline.storage pipeline.command_line pipeline.shards .stream.batches .stream"
        " .model .minimal_pairs .conversion .runs .checkpoints .pretrain"
    ),
    "trainer.inference.features": (
        "tokenizer pipeline.storage pipeline.command_line pipeline.documents .conll .process"
        " .model .conversion .runs .inference"
    ),
    "trainer.finetune": (
        "tokenizer pipeline.seeds pipeline.interrupts pipeline.storage pipeline.command_line"
        " pipeline.documents .conll .process .model .conversion .optim .engine .runs .watch"
        " .inference .inference.features"
    ),
    "trainer.first_checks": (
        "pipeline.storage pipeline.shards .stream.order .minimal_pairs .conversion .settings"
        " .inference .finetune .forget"
    ),
    "trainer.preflight": (
        "pipeline.storage pipeline.command_line pipeline.shards .process .stream.order .model"
        " .conversion .engine .settings .runs .pretrain .first_checks"
    ),
    "trainer.cli": (
        "pipeline.storage pipeline.command_line pipeline.shards .process .minimal_pairs"
        " .conversion .runs .checkpoints .watch .ask .preflight .replay .inference"
        " .inference.features"
    ),
    "trainer.__main__": "pipeline.interrupts .cli",
    "trainer.beambert": "tokenizer pipeline.interrupts pipeline.command_line pipeline.cli .cli",
}
# The libraries of a package or room, and of the rooms in it that have no line of their own.
LIBRARIES = {
    "tokenizer": "numpy tokenizers",
    "pipeline": "numpy pyarrow zstandard tqdm",
    "pipeline.pages": "jinja2 markupsafe",
    "pipeline.inspect": "numpy pyarrow markupsafe yaml",
    "pipeline.storage": "pyarrow fsspec botocore google_crc32c huggingface_hub zstandard tqdm",
    "pipeline.command_line": "yaml argcomplete",
    "pipeline.shards": "numpy pyarrow fsspec zstandard isal",
    "pipeline.documents": "numpy pyarrow fsspec zstandard brotli fastwarc resiliparse",
    "pipeline.wiki": "",
    "pipeline.text": "numpy sentencex py3langid",
    "pipeline.jobs": "numpy pyarrow fsspec tqdm apache_beam grpc",
    "pipeline.transforms": "apache_beam webdataset",
    "pipeline.stages": "numpy pyarrow tqdm",
    "trainer": (
        "torch deepspeed numpy pyarrow safetensors tokenizers tqdm yaml fsspec"
        " tensorboard wandb zstandard"
    ),
    "trainer.conversion": "torch numpy safetensors",
    "trainer.model": "torch numpy",
    "trainer.stream.order": "numpy",
    "trainer.engine": "torch deepspeed hjson",
    "trainer.stream.reading": "numpy pyarrow",
    "trainer.stream.batches": "torch numpy pyarrow",
    "trainer.stream": "torch numpy webdataset",
    "trainer.forget": "numpy",
    "trainer.replay": "torch numpy safetensors",
    "trainer.watch": "torch numpy tqdm yaml markupsafe tensorboard wandb",
}


def _modules():
    for package in ("tokenizer", "pipeline", "trainer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield module.removesuffix(".__init__"), path


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def _longest(table, name):
    """The longest key of a table that a dotted name lies in; none where it lies in none."""
    found = (key for key in table if name == key or name.startswith(f"{key}."))
    return max(found, key=len, default="")


def _below(room):
    """The rooms that a room may import, by their full names."""
    package = room.partition(".")[0]
    return [package + each if each[0] == "." else each for each in ROOMS[room].split()]


@pytest.mark.parametrize(("module", "path"), list(_modules()), ids=str)
def test_imports_follow_the_arrows(module, path):
    room = _longest(ROOMS, module)
    assert room or module in ("pipeline", "trainer"), f"{module} lies in no room"
    libraries = LIBRARIES[_longest(LIBRARIES, module)].split()
    for name in _imports(path):
        if name.split(".")[0] in ("tokenizer", "pipeline", "trainer"):
            other = _longest(ROOMS, name)
            assert other in (room, *_below(room)), f"{module} may not import {name}"
        else:
            assert name.split(".")[0] in {*STANDARD, *libraries}, f"{module} may not import {name}"


def test_arrows_lead_down():
    rooms = [*ROOMS]
    for number, room in enumerate(rooms):
        assert {*_below(room)} <= {*rooms[:number]}, room


def test_no_circle_of_files():
    """Neither at import, nor inside functions, nor for types alone."""
    files = {module: [*_imports(path)] for module, path in _modules()}
    graph = {module: {name for name in names if name in files} for module, names in files.items()}
    assert len([*graphlib.TopologicalSorter(graph).static_order()]) == len(files)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        (
            "pipeline.shards.dataset, pipeline.shards.verify",
            "apache_beam torch tokenizers webdataset",
        ),
        ("tokenizer.encode, tokenizer.learn", "apache_beam torch pyarrow transformers"),
        ("pipeline.stages.build", "torch deepspeed webdataset"),
        ("pipeline.cli, pipeline.stages.corpus", "apache_beam torch"),
        ("trainer.beambert", "torch deepspeed apache_beam pyarrow yaml"),
        ("trainer.finetune.task", "torch deepspeed apache_beam"),
        ("trainer.ask.command", "torch deepspeed apache_beam"),
        ("trainer.stream.step", "apache_beam deepspeed webdataset"),
        ("trainer.stream.pipeline", "apache_beam deepspeed"),
    ],
)
def test_heavy_imports_stay_out(modules, forbidden):
    code = f"import {modules}, sys; print(*({{*{forbidden.split()}}} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    assert ran.stdout.split() == []


def test_lines_for_people_go_through_one_door():
    """`say` hides secrets, and shows what a terminal would obey; a bare print does neither."""
    doors = {"pipeline.storage.terminal", "pipeline.command_line.program"}
    others = [(module, path) for module, path in _modules() if module not in doors]
    printing = [
        f"{path}:{node.lineno}"
        for module, path in others
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "tqdm.write")
    ]
    assert printing == []
