"""Who may import whom: documents -> shards -> training, and never back."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STANDARD = {*sys.stdlib_module_names, "__future__"}

# From the ground up: a room, and the rooms above it in this table that it may import. A file that
# lies in no room is one by itself.
ROOMS = {
    "tokenizer": "",
    "pipeline.seeds": "",
    "pipeline.machine": "",
    "pipeline.interrupts": "",
    "pipeline.storage": "",
    "pipeline.pages": "",
    "pipeline.command_line": "pipeline.interrupts pipeline.storage",
    "pipeline.shards": "pipeline.storage",
    "pipeline.wiki": "tokenizer",
    "pipeline.documents": "tokenizer pipeline.seeds pipeline.storage pipeline.wiki",
    "pipeline.text": "tokenizer pipeline.seeds pipeline.storage pipeline.documents",
    "pipeline.tokens": "tokenizer pipeline.storage pipeline.shards pipeline.documents pipeline.text",
    "pipeline.instances": "tokenizer pipeline.seeds pipeline.shards pipeline.documents pipeline.tokens",
    "pipeline.settings": (
        "pipeline.machine pipeline.storage pipeline.documents pipeline.text pipeline.tokens"
        " pipeline.instances"
    ),
    "pipeline.inspect": (
        "tokenizer pipeline.storage pipeline.pages pipeline.shards pipeline.tokens"
        " pipeline.instances"
    ),
    "pipeline.export": "pipeline.storage pipeline.shards pipeline.instances",
    "pipeline.jobs": (
        "tokenizer pipeline.machine pipeline.interrupts pipeline.storage pipeline.shards"
        " pipeline.documents pipeline.text pipeline.tokens pipeline.instances"
    ),
    "pipeline.stages": (
        "tokenizer pipeline.machine pipeline.storage pipeline.pages pipeline.shards"
        " pipeline.documents pipeline.text pipeline.tokens pipeline.instances pipeline.settings"
        " pipeline.inspect pipeline.jobs"
    ),
    "pipeline.transforms": (
        "pipeline.storage pipeline.shards pipeline.documents pipeline.tokens pipeline.settings"
        " pipeline.jobs pipeline.stages"
    ),
    "pipeline.cli": (
        "pipeline.machine pipeline.interrupts pipeline.storage pipeline.command_line"
        " pipeline.shards pipeline.tokens pipeline.settings pipeline.inspect pipeline.export"
        " pipeline.jobs pipeline.stages"
    ),
    "pipeline.__main__": "pipeline.interrupts pipeline.cli",
    "trainer.checkpoints.settings": "",
    "trainer.guards.settings": "",
    "trainer.conll": "",
    "trainer.process": "pipeline.interrupts",
    "trainer.model": "pipeline.seeds",
    "trainer.order": "pipeline.storage pipeline.shards",
    "trainer.reading.settings": "",
    "trainer.batches": (
        "tokenizer pipeline.seeds pipeline.shards pipeline.instances trainer.model"
    ),
    "trainer.reading": (
        "pipeline.storage pipeline.shards trainer.order trainer.reading.settings trainer.batches"
    ),
    "trainer.stream": (
        "pipeline.storage pipeline.shards trainer.order trainer.reading.settings trainer.batches"
        " trainer.reading"
    ),
    "trainer.conversion": "tokenizer pipeline.storage trainer.model",
    "trainer.optim": "",
    "trainer.engine": "pipeline.seeds trainer.process trainer.batches trainer.model trainer.optim",
    "trainer.settings": (
        "trainer.checkpoints.settings trainer.guards.settings trainer.model trainer.optim"
    ),
    "trainer.runs": "pipeline.storage pipeline.shards trainer.order trainer.model trainer.settings",
    "trainer.checkpoints": (
        "pipeline.storage trainer.checkpoints.settings trainer.process trainer.optim"
        " trainer.engine trainer.runs"
    ),
    "trainer.guards": "trainer.guards.settings trainer.process trainer.optim",
    "trainer.watch": "trainer.process trainer.model trainer.engine trainer.settings trainer.runs",
    "trainer.report": "pipeline.pages trainer.model trainer.runs trainer.watch",
    "trainer.preflight": (
        "pipeline.storage pipeline.command_line pipeline.shards trainer.process trainer.order"
        " trainer.model trainer.engine trainer.settings trainer.runs"
    ),
    "trainer.pretrain": (
        "pipeline.storage pipeline.shards trainer.process trainer.order trainer.reading.settings"
        " trainer.batches trainer.stream trainer.model trainer.conversion trainer.optim"
        " trainer.engine trainer.settings trainer.runs trainer.checkpoints trainer.guards"
        " trainer.watch"
    ),
    "trainer.inference": (
        "tokenizer pipeline.storage pipeline.command_line pipeline.shards trainer.batches"
        " trainer.stream trainer.model trainer.conversion trainer.runs trainer.checkpoints"
        " trainer.pretrain"
    ),
    "trainer.inference.features": (
        "tokenizer pipeline.storage pipeline.command_line pipeline.documents trainer.conll"
        " trainer.process trainer.model trainer.conversion trainer.runs trainer.inference"
    ),
    "trainer.finetune": (
        "tokenizer pipeline.seeds pipeline.interrupts pipeline.storage pipeline.command_line"
        " pipeline.documents trainer.conll trainer.process trainer.model trainer.conversion"
        " trainer.optim trainer.engine trainer.runs trainer.watch trainer.inference"
        " trainer.inference.features"
    ),
    "trainer.cli": (
        "pipeline.storage pipeline.command_line pipeline.shards trainer.process trainer.conversion"
        " trainer.runs trainer.checkpoints trainer.report trainer.preflight trainer.inference"
        " trainer.inference.features"
    ),
    "trainer.__main__": "pipeline.interrupts trainer.cli",
    "trainer.beambert": "tokenizer pipeline.interrupts pipeline.command_line pipeline.cli trainer.cli",
}
# The libraries of a package or room, and of the rooms in it that have no line of their own.
LIBRARIES = {
    "tokenizer": "numpy tokenizers",
    "pipeline": "numpy pyarrow zstandard tqdm",
    "pipeline.pages": "jinja2 markupsafe",
    "pipeline.inspect": "numpy pyarrow markupsafe yaml",
    "pipeline.storage": "pyarrow fsspec botocore google_crc32c huggingface_hub zstandard",
    "pipeline.command_line": "yaml",
    "pipeline.shards": "numpy pyarrow fsspec zstandard isal",
    "pipeline.documents": "numpy pyarrow fsspec zstandard fastwarc resiliparse",
    "pipeline.wiki": "mwparserfromhell",
    "pipeline.text": "numpy sentencex py3langid",
    "pipeline.jobs": "numpy pyarrow fsspec tqdm apache_beam grpc",
    "pipeline.transforms": "apache_beam webdataset",
    "pipeline.stages": "numpy pyarrow tqdm",
    "trainer": (
        "torch deepspeed numpy pyarrow safetensors tokenizers tqdm yaml fsspec"
        " tensorboard wandb zstandard"
    ),
    "trainer.report": "yaml markupsafe",
    "trainer.conversion": "torch numpy safetensors",
    "trainer.model": "torch numpy",
    "trainer.order": "numpy",
    "trainer.reading": "numpy pyarrow",
    "trainer.batches": "torch numpy pyarrow",
    "trainer.stream": "torch numpy webdataset",
}


def _modules():
    for package in ("tokenizer", "pipeline", "trainer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield (
                ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"),
                path,
            )


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def _longest(table, name):
    """The longest key of a table that a dotted name lies in; none where it lies in none."""
    return max(
        (key for key in table if name == key or name.startswith(f"{key}.")), key=len, default=""
    )


@pytest.mark.parametrize(("module", "path"), list(_modules()), ids=str)
def test_imports_follow_the_arrows(module, path):
    room = _longest(ROOMS, module)
    assert room or module in ("pipeline", "trainer"), f"{module} lies in no room"
    libraries = LIBRARIES[_longest(LIBRARIES, module)].split()
    for name in _imports(path):
        if name.split(".")[0] in ("tokenizer", "pipeline", "trainer"):
            other = _longest(ROOMS, name)
            assert other in (room, *ROOMS[room].split()), f"{module} may not import {name}"
        else:
            assert name.split(".")[0] in {*STANDARD, *libraries}, f"{module} may not import {name}"


def test_arrows_lead_down():
    above = []
    for room, others in ROOMS.items():
        assert set(others.split()) <= set(above), room
        above.append(room)


def test_no_circle_of_files():
    """Neither at import, nor inside functions, nor for types alone."""
    files = {module: [*_imports(path)] for module, path in _modules()}
    graph = {module: {name for name in names if name in files} for module, names in files.items()}
    assert len([*graphlib.TopologicalSorter(graph).static_order()]) == len(files)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        (
            "import pipeline.shards.dataset, pipeline.shards.verify",
            {"apache_beam", "torch", "tokenizers", "webdataset"},
        ),
        (
            "import tokenizer.encode, tokenizer.export, tokenizer.learn",
            {"apache_beam", "torch", "pyarrow", "transformers"},
        ),
        ("import pipeline.stages.build", {"torch", "deepspeed", "webdataset"}),
        ("import pipeline.cli", {"apache_beam", "pyarrow", "torch"}),
        ("import trainer.beambert", {"torch", "deepspeed", "apache_beam", "pyarrow", "yaml"}),
        ("import trainer.cli", {"torch", "deepspeed", "apache_beam"}),
        ("import trainer.finetune.settings", {"torch", "deepspeed", "apache_beam"}),
        ("import trainer.finetune.task", {"torch", "deepspeed", "apache_beam"}),
        ("import trainer.stream.step", {"apache_beam", "deepspeed", "webdataset"}),
        ("import trainer.stream.pipeline", {"apache_beam", "deepspeed"}),
    ],
)
def test_heavy_imports_stay_out(statement, forbidden):
    code = f"{statement}; import sys; print(*({forbidden!r} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []
