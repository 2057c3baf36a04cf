"""Documents are forgotten exactly, the plan says what that takes, and bad input changes nothing.

Document n of the datasets here is row n of each shard.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.storage.local import replace_file
from pipeline.storage.locks import locked_file
from scripts.soak.forgetting import LONG, SHORT, Scenario, forget_often
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import OURS, TINY, launch, write_config
from trainer.checkpoints.files import read_marker
from trainer.checkpoints.store import CheckpointStore
from trainer.cli import main
from trainer.forget.certificate import hash_id, write_certificate
from trainer.forget.command import _copy_files, _Task
from trainer.forget.plan import ForgettingPlan
from trainer.forget.settings import ForgetSettings
from trainer.runs.run_folder import RunFolder
from trainer.settings import Phase, PretrainSettings

pytestmark = pytest.mark.engines

PHASE = {"seq_len": 16, "global_batch": 12, "steps": 8, "peak_lr": 0.02, "warmup_steps": 2}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A dataset and a run of 8 steps on it, with a checkpoint after every second step."""
    folder = tmp_path_factory.mktemp("forget")
    data = write_tiny_dataset(folder / "data")
    launch(OURS, pretrain(folder, data, "run"), 1)
    return folder


def pretrain(folder, data, name, **changed):
    often = {"checkpoint": {"interval": 2, "keep": 0}, "seed": 11}
    often |= {"model": {"preset": "tiny", "overrides": TINY}, "cache_dir": str(folder / "cache")}
    return write_config(folder / name, data, phases=[PHASE], **often | changed)


@pytest.fixture
def forget(place, tmp_path, capsys):
    """Runs the command for documents, and returns its code and what it said."""

    def run(documents, *flags, name="run", output="new"):
        path = tmp_path / "list"
        path.write_text("".join(f"{document:016x}\n" for document in documents))
        words = ["forget", str(place / name), "--documents", str(path), *flags]
        capsys.readouterr()
        code = main([*words, "--output", str(tmp_path / output)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def first_steps(place, capsys):
    """The first step that read each document, as `ask` says it."""
    capsys.readouterr()
    words = ["ask", str(place / "run"), "--step", "1-8", "--format", "jsonl", "--origins", "false"]
    assert main([*words, "--cache_dir", str(place / "cache")]) == 0
    steps = {}
    for line in capsys.readouterr().out.splitlines():
        record = json.loads(line)
        if record["kind"] == "instance":
            steps.setdefault(int(record["document_a"], 16), record["step"])
    return steps


def test_the_plan_names_step_and_checkpoint_and_does_nothing(place, forget, tmp_path, capsys):
    steps = first_steps(place, capsys)
    middle = next(document for document, step in sorted(steps.items()) if step == 5)
    late = next(document for document, step in sorted(steps.items()) if step == 7)
    code, said = forget([late, middle], "--plan")
    assert code == 0
    assert "2 document(s) to forget: steps of" in said
    assert "the first in step 5\n" in said
    assert "training goes on after step 4, its checkpoint\n" in said
    assert "4 steps are made again, 4 until the end, 0.00 hours at its rate\n" in said
    assert not (tmp_path / "new").exists()
    early = next(document for document, step in sorted(steps.items()) if step == 1)
    assert (
        "no checkpoint is from before that step: training begins at step 0"
        in forget([early], "--plan")[1]
    )


def test_documents_that_no_step_read_need_no_other_run(place, forget, tmp_path, capsys):
    steps = first_steps(place, capsys)
    unread = next(document for document in range(300) if document not in steps)
    code, said = forget([unread])
    assert (code, (tmp_path / "new").exists()) == (0, False)
    assert "1 document(s) to forget: no step of" in said
    assert "is the run without them, no other is made" in said


def train_without(document, run, output):
    """Forgets a document of a run in another process; what the command said."""
    path = output.with_suffix(".list")
    path.write_text(f"{document:016x}\n")
    words = ["forget", str(run), "--documents", str(path), "--output", str(output)]
    return launch(OURS, words, 1)


def test_forgetting_equals_never_having_read_and_is_certified(place, tmp_path, capsys):
    """Forgetting once more is like one list of both."""
    steps = first_steps(place, capsys)
    [first, second] = [
        next(document for document, step in sorted(steps.items()) if step == wanted)
        for wanted in (5, 3)
    ]
    before = {path: path.read_bytes() for path in (place / "run").rglob("*") if path.is_file()}
    said = train_without(first, place / "run", tmp_path / "new")
    assert "new: continuing after step 4" in said
    certificate = json.loads((tmp_path / "new/certificate.json").read_text())
    assert certificate["documents_sha256"] == [hash_id(first)]
    assert certificate["from_checkpoint"] == "step-00000004"
    assert certificate["first_step"] == 5
    last = tmp_path / "new/checkpoints/step-00000008"
    assert certificate["files"] == read_marker(last)
    train_without(second, tmp_path / "new", tmp_path / "newer")
    listed = str(tmp_path / "newer/left_out.txt")
    launch(OURS, pretrain(tmp_path, place / "data", "whole", leave_out=listed), 1)
    whole = tmp_path / "whole/checkpoints/step-00000008"
    newer = tmp_path / "newer/checkpoints/step-00000008"
    for file in whole.iterdir():
        assert file.read_bytes() == (newer / file.name).read_bytes(), file.name
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("documents", "changes", "message"),
    [
        ([10_000], {}, "lists 0000000000002710, which no dataset holds ("),
        ([3], {"data": "no-such"}, "no-such holds no manifest.json: not a finished dataset"),
        ([3], {"data": "other"}, "was trained on other datasets: root hash of data"),
        ([3], {"output": "run"}, "exists and is another run; give another --output, or remove it"),
        ([3], {"run": "no-run"}, "no-run: found no folder; give the --output of a pretrain"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    place, tmp_path, capsys, documents, changes, message
):
    write_tiny_dataset(tmp_path / "other", seed=9)
    shutil.copytree(place / "run", tmp_path / "run")
    path = tmp_path / "list"
    path.write_text("".join(f"{document:016x}\n" for document in documents))
    words = ["forget", str(place / changes.get("run", "run")), "--documents", str(path)]
    words += ["--output", str(tmp_path / changes.get("output", "new"))]
    if "data" in changes:
        words += ["--data", str(tmp_path / changes["data"])]
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    for plan in (["--plan"], []):
        assert main([*words, *plan]) == 2
        said = capsys.readouterr().err.strip()
        assert message in said
        assert len(said.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_second_command_with_the_same_output_is_refused(place, forget, tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.forget.command.PATIENCE_SECONDS", 0.0)
    unfinished = tmp_path / ".new.unfinished"
    unfinished.mkdir()
    (unfinished / "vocab.txt").write_text("of the first")
    with locked_file(tmp_path / ".new.lock", tmp_path / "new", 0.0):
        code, said = forget([3])
    assert code == 2
    assert said.splitlines()[-1].endswith(
        f"{tmp_path / 'new'} is in use by another job for 0 s; wait for it, stop it, or give"
        " another --output"
    )
    assert (unfinished / "vocab.txt").read_text() == "of the first"
    assert not (tmp_path / "new").exists()


def test_a_list_of_everything_is_refused_before_there_is_a_run(place, tmp_path, capsys):
    path = tmp_path / "list"
    path.write_text("".join(f"{document:016x}\n" for document in range(300)))
    assert main(pretrain(tmp_path, place / "data", "run", leave_out=str(path))) == 2
    said = capsys.readouterr().err.strip()
    assert "data: leave_out leaves nothing of pass 0 of train L16, all 450 instances" in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run/run.json").exists()


def test_ranks_and_phases(tmp_path):
    """Two ranks under ZeRO-1; `python -m scripts.soak.forgetting` tries all kinds of runs."""
    scenario = Scenario("lamb", 1, 2, (SHORT, LONG), ("a:2", "b"), {"masking": "0.3-0.15"})
    [result] = forget_often(scenario, tmp_path / "work", 1, seed=4)
    assert result["is_equal"]
    assert result["first_step"]


def test_a_run_inside_the_old_one_is_refused(place, tmp_path, capsys):
    path = tmp_path / "list"
    path.write_text(f"{3:016x}\n")
    output = place / "run" / "new"
    words = ["forget", str(place / "run"), "--documents", str(path), "--output", str(output)]
    assert main(words) == 2
    said = capsys.readouterr().err.strip()
    assert f"{output} is in the folder of {place / 'run'}, which is never changed; give" in said
    assert not output.exists()
    assert not (place / "run" / ".new.unfinished").exists()


@pytest.mark.parametrize("url", ["run", "run/up", "link/up", "file://PLACE/run/up", "STORE/up"])
def test_checkpoints_are_not_uploaded_into_the_old_run(tmp_path, url):
    """The run is at a path, or in a store, and its folder is spelt in other ways too."""
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    run = "memory://runs/old" if url.startswith("STORE") else str(tmp_path / "run")
    url = url.replace("PLACE", str(tmp_path)).replace("STORE", run)
    if "://" not in url:
        url = str(tmp_path / url)
    given = ForgetSettings(run, "list", "new", checkpoint_url=url)
    old = SimpleNamespace(store=CheckpointStore(run))
    task = _Task(given, None, old, RunFolder(tmp_path / "new"))
    with pytest.raises(FileExistsError, match=r"is in the folder of .*, which is never changed"):
        _ = task.is_begun
    beside = replace(given, checkpoint_url=f"{run}-new")
    assert not _Task(beside, None, old, task.new).is_begun


def test_a_cache_folder_that_is_given_is_that_of_the_new_run():
    old = PretrainSettings(data=["data"], output="run", phases=[Phase(16, 8, 4, 1.0)])
    given = ForgetSettings("run", "list", "new", cache_dir="mine")
    task = _Task(given, None, SimpleNamespace(settings=old), RunFolder(Path("new")))
    assert task.pretrain_settings().cache_dir == "mine"


def test_a_last_row_that_was_not_written_completely_is_not_copied(tmp_path):
    old = tmp_path / "run"
    old.mkdir()
    rows = b'{"step": 3}\n{"step": 5}\n{"st'
    for name in ("metrics.jsonl", "anomalies.jsonl"):
        (old / name).write_bytes(rows)
    for name in ("vocab.txt", "tokenizer.json"):
        (old / name).touch()
    plan = ForgettingPlan((7,), 1, 1, 5, None, 4, 8, 8, None)
    _copy_files(SimpleNamespace(store=CheckpointStore(str(old))), RunFolder(tmp_path / "new"), plan)
    for name in ("metrics.jsonl", "anomalies.jsonl"):
        assert (tmp_path / "new" / name).read_bytes() == b'{"step": 3}\n'


@pytest.fixture
def finished(tmp_path):
    """A run that `forget` made: a run that was known to have read nothing in its 6 steps."""
    run = RunFolder(tmp_path)
    forgot = {"old_run": "0ld", "list": "0", "num_documents": 1, "num_instances": 0}
    forgot |= {"first_step": None, "steps_made": 6, "from_checkpoint": None}
    launch_facts = {"world_size": 1, "time": "now", "git_commit": "0", "software": {}}
    launch_facts |= {"hardware": {"machine": "", "gpus": []}}
    facts = {"id": "new", "model": {}, "datasets": [], "launches": [launch_facts], "forgot": forgot}
    run.facts.write_text(json.dumps(facts))
    last = run.checkpoints / "step-00000008"
    last.mkdir(parents=True)
    (last / "COMMITTED").write_text('{"files": {"state.json": {"bytes": 1, "sha256": "a"}}}')
    return run


def test_a_certificate_says_up_to_which_step_the_old_run_is_known(finished):
    page = write_certificate(finished, [7], []).read_text()
    assert "None of the first 6 steps of that run had read one." in page
    assert "goes on from the beginning of that run" in page


def test_a_certificate_that_was_interrupted_is_written_again(finished, monkeypatch):
    """`forget` writes it unless certificate.json is there."""

    def die_after_one(path, data):
        replace_file(path, data)
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.forget.certificate.replace_file", die_after_one)
    with pytest.raises(KeyboardInterrupt):
        write_certificate(finished, [7], [])
    assert not (finished.path / "certificate.json").exists()


def test_a_plan_of_a_run_that_branched_begins_where_it_branched():
    plan = ForgettingPlan((7,), 1, 1, 602, None, 600, 700, 800, None)
    assert plan.describe("RUN")[1:] == [
        "no checkpoint is from before that step: training begins at step 600",
        "100 steps are made again, 200 until the end",
    ]


def test_a_plan_of_a_run_that_goes_on():
    """An unfinished run is made to go on without the documents, though none was read."""
    plan = ForgettingPlan((7,), 1, 0, None, "step-00000004", 4, 4, 8, None)
    assert not plan.has_nothing_to_do
    assert plan.describe("RUN")[1:] == [
        "training goes on after step 4, its checkpoint",
        "0 steps are made again, 4 until the end",
    ]
