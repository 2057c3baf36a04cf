"""Who may import whom: documents -> shards -> training, and never back."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STANDARD = set(sys.stdlib_module_names)

# Module prefix -> what it may import besides the standard library and its own room; the longest prefix that fits rules.
ALLOWED = {
    "tokenizer": {"numpy", "tokenizers"},
    "pipeline": {
        "tokenizer", "apache_beam", "numpy", "pyarrow", "fsspec", "sentencex", "zstandard",
        "yaml", "tqdm",
    },
    "pipeline.shards": {"numpy", "pyarrow", "fsspec", "zstandard", "isal", "botocore", "pipeline.missing_packages"},
    "pipeline.command_line": {
        "pipeline.command_flags", "pipeline.command_help", "pipeline.interrupts", "pipeline.missing_packages",
        "pipeline.shards.secret_values",
    },
    "pipeline.command_flags": {"pipeline.command_values", "yaml"},
    "pipeline.command_help": {"pipeline.command_values"},
    "pipeline.command_values": {"yaml"},
    "pipeline.interrupts": set(),
    "pipeline.missing_packages": set(),
    "pipeline.compiled_instances": {"numpy", "tokenizer.compiled"},
    "pipeline.pairs": {"numpy", "pipeline.seeds", "pipeline.compiled_instances"},
    "pipeline.gather": {"numpy", "pipeline.pairs", "pipeline.compiled_instances"},
    "pipeline.masking": {"numpy", "pipeline.pairs", "pipeline.seeds", "pipeline.compiled_instances"},
    "pipeline.look": {"pipeline.look"},
    "trainer": {
        "tokenizer", "tokenizers", "pipeline.shards", "pipeline.command_line", "pipeline.interrupts", "pipeline.look",
        "torch", "deepspeed", "numpy", "pyarrow", "safetensors", "tqdm", "yaml", "fsspec", "tensorboard", "wandb",
        "google_crc32c",
    },
    "trainer.checkpoints": {
        "trainer.optim.sharded", "trainer.optim.fragment", "trainer.partitions", "trainer.ranks", "trainer.run_folder",
        "trainer.safety_settings", "pipeline.shards", "torch", "safetensors",
    },
    "trainer.conversion": {
        "trainer.model", "tokenizer", "pipeline.shards", "torch", "numpy", "safetensors", "google_crc32c",
    },
    "trainer.guards": {
        "trainer.optim.sharded", "trainer.ranks", "trainer.safety_settings", "trainer.stream.order", "torch", "tqdm",
    },
    "trainer.finetune": {
        "trainer.model", "trainer.optim", "trainer.engine", "trainer.ranks", "trainer.partitions", "trainer.conversion",
        "trainer.open_model", "trainer.model_settings", "trainer.settings_changes", "trainer.run_folder",
        "trainer.run_lock", "trainer.stopping", "trainer.allocator", "trainer.watch", "trainer.device",
        "trainer.features", "trainer.build_optimizer", "tokenizer", "tokenizers", "pipeline.interrupts",
        "pipeline.shards", "torch", "numpy", "tqdm", "zstandard", "safetensors",
    },
}  # fmt: skip
OWN_ROOM = {
    "tokenizer": "tokenizer",
    "pipeline": "pipeline",
    "pipeline.shards": "pipeline.shards",
    "trainer": "trainer",
    "trainer.checkpoints": "trainer.checkpoints",
    "trainer.conversion": "trainer.conversion",
    "trainer.guards": "trainer.guards",
    "trainer.finetune": "trainer.finetune",
}


def _modules():
    for room in ("tokenizer", "pipeline", "trainer"):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def _rule_of(module):
    return max((rule for rule in ALLOWED if module == rule or module.startswith(f"{rule}.")), key=len)


def _is_below(name, prefix):
    return name == prefix or name.startswith(f"{prefix}.")


@pytest.mark.parametrize(("module", "path"), list(_modules()), ids=str)
def test_imports_follow_the_arrows(module, path):
    rule = _rule_of(module)
    allowed = {*ALLOWED[rule], *([OWN_ROOM[rule]] if rule in OWN_ROOM else [])}
    for name in _imports(path):
        is_standard = name.split(".")[0] in STANDARD | {"__future__"}
        assert is_standard or any(_is_below(name, each) for each in allowed), f"{module} may not import {name}"


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
        ("import pipeline.build", {"torch", "deepspeed", "webdataset"}),
        ("import pipeline.cli", {"apache_beam", "pyarrow", "torch"}),
        ("import trainer.cli", {"torch", "deepspeed", "apache_beam"}),
        ("import trainer.finetune.settings", {"torch", "deepspeed", "apache_beam"}),
        ("import trainer.finetune.task, trainer.finetune.tasks", {"torch", "deepspeed", "apache_beam"}),
        ("import trainer.stream.step", {"apache_beam", "deepspeed"}),
    ],
)
def test_heavy_imports_stay_out(statement, forbidden):
    code = f"{statement}; import sys; print(*({forbidden!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
