"""A certificate is made good by its claims and by steps that are made again, or it is not."""

import json
import shutil
from dataclasses import replace

import pytest

from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import OURS, TINY, launch, write_config
from trainer.cli import main
from trainer.forget.plan import read_old_run
from trainer.replay.check_certificate import choose_start
from trainer.replay.claims import Inquiry, check_claims, read_certificate

pytestmark = pytest.mark.engines

PHASE = {"seq_len": 16, "global_batch": 12, "steps": 8, "peak_lr": 0.02, "warmup_steps": 2}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run of 8 steps, and another that has forgotten a document of step 5 of it."""
    folder = tmp_path_factory.mktemp("certificate")
    data = write_tiny_dataset(folder / "data")
    often = {"checkpoint": {"interval": 2, "keep": 0}, "seed": 11}
    often |= {"model": {"preset": "tiny", "overrides": TINY}, "cache_dir": str(folder / "cache")}
    launch(OURS, write_config(folder / "run", data, phases=[PHASE], **often), 1)
    asked = ask(folder / "run", "--step", "1-5", "--origins", "false")
    records = [json.loads(line) for line in asked.splitlines()]
    instances = [record for record in records if record["kind"] == "instance"]
    early = {record["document_a"] for record in instances if record["step"] < 5}
    [document, *_] = sorted({record["document_a"] for record in instances} - early)
    (folder / "list").write_text(f"{document}\n")
    words = ["forget", str(folder / "run"), "--documents", str(folder / "list")]
    launch(OURS, [*words, "--output", str(folder / "new")], 1)
    return folder


def ask(run, *flags, expected=0):
    """What `ask` says about a run as JSON lines, in a process of its own."""
    return launch(OURS, ["ask", str(run), "--format", "jsonl", *flags], 1, expected)


def claims_of(said):
    """The verdicts that an answer has, in the order of the claims."""
    records = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [record["verdict"] for record in records if record["kind"] == "claim"]


def test_a_certificate_is_made_good_and_nothing_is_changed(place):
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    said = ask(place / "new", "--certificate", str(place / "new/certificate.json"))
    assert claims_of(said) == ["held"] * 10
    assert "step 5 is the first that reads one by the order of the datasets" in said
    assert "steps 5 to 8, made again from step-00000004, give these files" in said
    assert "3 files are equal, to the bit" in said
    assert "certificate.json is good: 10 claims held, 0 did not, and 0 could not be" in said
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_other_weights_are_not_made_good(place, tmp_path):
    certificate = json.loads((place / "new/certificate.json").read_text())
    certificate["files"]["model.safetensors"]["sha256"] = "0" * 64
    (tmp_path / "other.json").write_text(json.dumps(certificate))
    flags = ["--certificate", str(tmp_path / "other.json"), "--replay_from", "6"]
    said = ask(place / "new", *flags, expected=1)
    assert claims_of(said) == [*["held"] * 2, "not held", *["held"] * 6, "not held"]
    assert "steps 7 to 8, made again from step-00000006, give these files" in said
    assert "model.safetensors: another content; the largest difference of a weight is 0" in said
    assert "other.json was not made good: 8 claims held, 2 did not, and 0 could not be" in said


def verdicts(place, name="new", data=(), **changed):
    """The verdicts on a certificate with changed claims, other than "held"."""
    certificate = read_certificate(str(place / "new/certificate.json")) | changed
    run = read_old_run(str(place / name), None)
    left_out = read_old_run(str(place / "new"), None).left_out
    inquiry = Inquiry(
        certificate=certificate,
        run=replace(run, left_out=left_out),
        name=str(place / name),
        data=data,
        options=None,
        cache_dir=str(place / "cache"),
    )
    names = ("data", "documents", "files", "software", "record", "limits")
    names += ("first", "checkpoint", "reads")
    found = {name: claim.verdict for name, claim in zip(names, check_claims(inquiry), strict=True)}
    return {key: verdict for key, verdict in found.items() if verdict != "held"}


def test_each_wrong_claim_is_found(place, tmp_path):
    assert verdicts(place) == {}
    assert verdicts(place, documents_sha256=["0" * 64]) == {"documents": "not held"}
    not_first = {"record": "not held", "first": "not held"}
    assert verdicts(place, first_step=6) == not_first
    assert verdicts(place, first_step=None) == not_first
    assert verdicts(place, first_step=None, steps_made=4) == {"record": "not held"}
    not_begun = {"record": "not held", "checkpoint": "not held"}
    assert verdicts(place, from_checkpoint="step-00000006") == not_begun
    for changed in ({"git_commit": "0"}, {"launches": [{"world_size": 1}]}, {"num_instances": 99}):
        assert verdicts(place, **changed) == {"record": "not held"}
    limits = read_certificate(str(place / "new/certificate.json"))["not_covered"]
    assert verdicts(place, not_covered=limits[1:]) == {"limits": "not held"}
    assert verdicts(place, software={"torch": "0.1"}) == {"software": "cannot be checked"}
    assert verdicts(place, checkpoint="step-00000099") == {"files": "cannot be checked"}
    assert verdicts(place, checkpoint="step-00000006") == {"files": "not held"}
    assert verdicts(place, files={"gone": {}}) == {"files": "not held"}
    of_data = ["data", "limits", "first", "checkpoint", "reads"]
    gone = [str(tmp_path / "gone")]
    assert verdicts(place, data=gone) == dict.fromkeys(of_data, "cannot be checked")
    other = [str(write_tiny_dataset(tmp_path / "other", seed=9))]
    expected = dict.fromkeys(of_data, "cannot be checked") | {"data": "not held"}
    assert verdicts(place, data=other) == expected


def test_a_run_that_has_read_a_document_is_found_out(place):
    assert verdicts(place, "run") == dict.fromkeys(("files", "record", "reads"), "not held")


def test_steps_that_took_other_positions_are_found_out(place, tmp_path):
    """The run took what the old run took; its list and its certificate say otherwise."""
    for name in ("data", "cache"):
        (tmp_path / name).symlink_to(place / name)
    shutil.copytree(place / "new", tmp_path / "new")
    shutil.copy(place / "run/metrics.jsonl", tmp_path / "new")
    assert verdicts(tmp_path) == {"reads": "not held"}


@pytest.mark.parametrize(
    ("changes", "flags", "message"),
    [
        ({"new_run": "x"}, [], "is about the run x, and"),
        ({"launches": [{"world_size": 2}]}, [], "was trained by 2 rank(s), these are 1: other"),
        ({}, ["--replay_from", "5"], "replay_from is 5; the run can be made again from steps 0, 4"),
        ({"files": 3}, [], "is no certificate: files is 3, expected an object; give"),
        ({}, ["--step", "3"], "--step and --certificate are 2 questions: ask one after the other"),
    ],
)
def test_bad_input_is_one_line(place, tmp_path, capsys, changes, flags, message):
    certificate = json.loads((place / "new/certificate.json").read_text()) | changes
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(certificate))
    assert main(["ask", str(place / "new"), "--certificate", str(path), *flags]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("key", ["documents_sha256", "datasets", "launches", "files"])
def test_a_certificate_that_claims_nothing_is_refused(tmp_path, key):
    """Without datasets, no claim about which steps read the documents would be checked."""
    certificate = {
        "documents_sha256": ["0" * 64],
        "datasets": [{"name": "data", "root_hash": "1", "settings_hash": "2"}],
        "launches": [{"world_size": 1}],
        "software": {"torch": "2"},
        "checkpoint": "step-00000008",
        "files": {"model.safetensors": {"bytes": 1, "sha256": "3"}},
        "new_run": "new",
        "old_run": "old",
        "num_documents": 1,
        "steps_made": 8,
        "first_step": 5,
        "from_checkpoint": "step-00000004",
        "not_covered": [],
    }
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(certificate))
    assert read_certificate(str(path)) == certificate
    path.write_text(json.dumps(certificate | {key: type(certificate[key])()}))
    with pytest.raises(ValueError, match=f"is no certificate: {key} is empty; give"):
        read_certificate(str(path))


def test_the_checkpoint_to_begin_at():
    existing = ["step-00000004", "step-00000006", "step-00000008"]
    assert choose_start(None, "step-00000004", existing, 8) == "step-00000004"
    assert choose_start(None, "step-00000002", existing, 8) == "step-00000006"
    assert choose_start(None, None, existing, 8) is None
    assert choose_start(None, "step-00000002", ["step-00000008"], 8) is None
    assert choose_start(6, "step-00000004", existing, 8) == "step-00000006"
    assert choose_start(0, "step-00000004", existing, 8) is None
    with pytest.raises(ValueError, match="can be made again from steps 0, 4, 6"):
        choose_start(8, None, existing, 8)
