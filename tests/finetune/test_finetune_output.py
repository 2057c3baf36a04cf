"""What a fine-tuning folder keeps of its runs: taken up again, or named where it is damaged."""

import pytest

from trainer.finetune import output as output_files
from trainer.finetune.output import OutputFolder, open_output


@pytest.fixture
def folder(tmp_path, monkeypatch) -> OutputFolder:
    """Opened once, with facts that need no model and no data."""
    monkeypatch.setattr(output_files, "shared_facts", lambda *_: {"format": 1, "task": "sst2"})
    folder = OutputFolder(tmp_path / "out")
    open_output(folder, None, None)
    return folder


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"",
            r"finetune\.json is damaged, it is not JSON: .*; restore it, or give another --output for new runs",
        ),
        (b'{"format": 1, "ta', r"finetune\.json is damaged, it is not JSON: "),
        (b"\xff", r"finetune\.json is damaged, it is not JSON: "),
        (b"[1]", r"finetune\.json is damaged: it holds '\[1\]', expected an object; restore it"),
        (
            b'{"format": 1}',
            r"out holds a fine-tuning with other settings: task was None and is now 'sst2'",
        ),
    ],
)
def test_a_damaged_description_is_named_and_left(folder, content, message):
    open_output(folder, None, None)
    folder.facts.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_output(folder, None, None)
    assert folder.facts.read_bytes() == content


def test_a_damaged_run_is_named_with_what_to_do(folder):
    folder.write_run("seed0", {"loss": 0.5})
    assert folder.read_run("seed0") == {"loss": 0.5}
    assert folder.read_run("seed1") is None
    (folder.runs / "seed0.json").write_text('{"loss": ')
    with pytest.raises(
        ValueError,
        match=r"runs/seed0\.json is damaged, it is not JSON: .*; delete it, and this run is",
    ):
        folder.read_run("seed0")
