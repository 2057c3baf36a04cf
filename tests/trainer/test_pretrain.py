"""Whole runs on two ranks: undisturbed, killed and stopped, and what is refused at once."""

import dataclasses
import json
import shutil

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.command_line.program import parse_settings
from pipeline.shards.dataset import open_dataset
from pipeline.storage.local import replace_file
from tests.trainer import tiny_run
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import OURS, TINY, launch, meeting, rows_of
from trainer.checkpoints.files import find_checkpoints
from trainer.cli import COMMANDS
from trainer.model.config import ModelSettings, num_parameters, preset
from trainer.preflight.plan import checkpoint_bytes
from trainer.pretrain.run import resolve_epochs
from trainer.runs.check_mixture import check_mixture
from trainer.runs.run_folder import RunFolder, prepare_run
from trainer.settings import Phase, PretrainSettings, resolve
from trainer.stream.order.source import one_dataset, open_mixture
from trainer.watch.recorder import MEASURED

PHASES = [Phase(16, 12, 8, 0.02, warmup_steps=2), Phase(32, 7, 5, 0.01, optimizer_state="reset")]


def write_config(data, output, **changed):
    phases = [{**dataclasses.asdict(phase), **changed} for phase in PHASES]
    often = {"validation": {"interval": 5}, "checkpoint": {"interval": 3, "keep": 2}}
    model = {"preset": "tiny", "overrides": TINY}
    return tiny_run.write_config(output, data, phases=phases, model=model, seed=11, **often)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tiny_dataset(tmp_path_factory.mktemp("dataset"), seq_lens=(16, 32))


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """The folder with two runs, `calm` and `rough`, and what the ranks of each launch said."""
    folder = tmp_path_factory.mktemp("runs")
    calm, rough = (write_config(data, folder / name) for name in ("calm", "rough"))
    wild = write_config(data, folder / "wild", peak_lr=1e30)
    return folder, {
        "calm": launch(OURS, calm, 2),
        "killed": launch(meeting("kill", 5), rough, 2, expected=9),
        "stopped": launch(meeting("SIGTERM", 9), rough, 2, expected=143),
        "continued": launch(OURS, rough, 2),
        "finished": launch(OURS, [*rough, "--zero_stage", "2"], 1),
        "diverged": launch(OURS, wild, 1, expected=2),
    }


@pytest.mark.engines
def test_checkpoints_are_as_large_as_the_plan_says(runs):
    folder = find_checkpoints(runs[0] / "calm" / "checkpoints")[0][-1]
    tensors = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    expected = checkpoint_bytes(num_parameters(preset("tiny", vocab_size=60, **TINY)), "fp32")
    assert expected <= tensors <= expected + 64 * 1024  # their headers


@pytest.mark.engines
def test_continued_run_equals_the_undisturbed_one_to_the_last_bit(runs):
    folder, _ = runs
    for split in ("train", "validation"):
        calm, rough = (rows_of(folder / name, split, MEASURED) for name in ("calm", "rough"))
        assert rough == calm


@pytest.mark.engines
def test_rows_of_metrics(runs):
    folder, _ = runs
    rows = rows_of(folder / "calm")
    assert [row["step"] for row in rows] == list(range(1, 14))
    assert [row["phase"] for row in rows] == [0] * 8 + [1] * 5
    assert [row["instances"] for row in rows] == [12] * 8 + [7] * 5
    assert rows[0]["learning_rate"] == 0.0
    assert rows[2]["learning_rate"] == 0.02
    assert all(row["loss"] == pytest.approx(row["mlm_loss"] + row["nsp_loss"]) for row in rows)
    assert all(row["grad_norm"] > 0 and 1.0 <= row["max_over_mean_tokens"] <= 2.0 for row in rows)
    assert rows[0]["mlm_loss"] == pytest.approx(4.1, abs=0.3)  # ln 60: it knows nothing yet
    validation = rows_of(folder / "calm", "validation")
    assert [row["step"] for row in validation] == [5, 8, 10, 13]
    assert all(row["instances"] == 60 and row["masked"] == 120 for row in validation)
    assert 1.0 < validation[0]["unigram_entropy"] < 4.1
    assert all(0.5 <= row["nsp_majority_share"] < 1.0 for row in validation)


@pytest.mark.engines
def test_run_folder_says_what_was_done(runs):
    run = runs[0] / "rough"
    facts = json.loads((run / "run.json").read_text())
    assert [launch["world_size"] for launch in facts["launches"]] == [2, 2, 2, 1]
    assert facts["launches"][0]["software"]["deepspeed"]
    assert facts["model"]["vocab_size"] == 60
    assert (run / "vocab.txt").read_text().startswith("[PAD]\n")
    assert (run / "tokenizer.json").exists()
    words = ["--config", str(run / "config.yaml")]
    settings = parse_settings("pretrain", COMMANDS["pretrain"], words)
    assert (settings.phases, settings.model.overrides) == (PHASES, TINY)
    assert (settings.seed, settings.micro_tokens) == (11, 48)


@pytest.mark.engines
def test_messages_for_people(runs):
    _, printed = runs
    for launched, said in (
        ("calm", "step 5: validation MLM loss"),
        ("calm", "(unigram entropy of the text "),
        ("calm", "Z step 1/13: loss "),
        ("calm", " epochs of length 32; "),
        ("stopped", "continuing after step 3"),
        ("stopped", "stopped by a signal and saved after step 10; the same command"),
        ("continued", "continuing after step 10"),
        ("finished", "this run is finished, all 13 steps are made"),
        ("diverged", "the gradient's norm is nan, training has diverged"),
    ):
        assert said in printed[launched]
    for text in printed.values():
        assert "Warning" not in text
        assert text.count("finished, 13 steps") <= 1, "only rank 0 speaks"


@pytest.mark.engines
def test_curves_in_tensorboard_go_on_without_doubled_steps(runs):
    read = {}
    for name in ("calm", "rough"):
        events = EventAccumulator(str(runs[0] / name / "tensorboard"))
        events.Reload()
        read[name] = {
            tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
            if not tag.startswith("speed/")
        }
    assert read["rough"] == read["calm"]
    rows = rows_of(runs[0] / "calm")
    expected = [(row["step"], pytest.approx(row["mlm_loss"])) for row in rows]
    assert read["calm"]["train/mlm_loss"] == expected
    assert [step for step, _ in read["calm"]["validation/nsp_accuracy"]] == [5, 8, 10, 13]


def settings_for(data, output, **changed):
    fields = {"phases": PHASES, "model": ModelSettings("tiny", TINY), **changed}
    return resolve(PretrainSettings(data=[str(data)], output=str(output), **fields))


def mixture_of(data):
    return one_dataset(open_dataset(str(data)))


def prepare(data, output, world_size=1, weights=None, dataset=None, **changed):
    """What a launch does with the run's folder."""
    settings, mixture = settings_for(data, output, **changed), mixture_of(dataset or data)
    prepare_run(settings, mixture, preset("tiny"), world_size, weights)


@pytest.mark.parametrize(
    ("changed", "world_size", "message"),
    [
        ({}, 13, r"phases\.0\.global_batch is 12 for 13 ranks"),
        (
            {"phases": [Phase(64, 8, 1, 0.1)]},
            1,
            "seq_len 64; the dataset has train L16, train L32; build it with --seq_lens 16 32 64",
        ),
        ({"model": ModelSettings("tiny", {"max_position_embeddings": 16})}, 1, r"1\.seq_len is 32"),
        ({"model": ModelSettings("tiny", {"vocab_size": 5})}, 1, "dataset's vocabulary decides"),
        ({"model": ModelSettings("huge")}, 1, "choose one of tiny"),
    ],
)
def test_what_does_not_fit_the_dataset_is_refused(data, tmp_path, changed, world_size, message):
    with pytest.raises(ValueError, match=message):
        check_mixture(settings_for(data, tmp_path, **changed), mixture_of(data), world_size)


def test_epochs_become_steps_in_the_proportion_of_the_phases(data, tmp_path):
    phases = [Phase(16, 8, 30, 1e-3), Phase(16, 8, 10, 1e-3)]
    given = settings_for(data, tmp_path, phases=phases, epochs=4.0)
    found = resolve_epochs(given, mixture_of(data))
    # 4 passes of 450 instances are 225 steps.
    assert ([each.steps for each in found.phases], found.epochs) == ([169, 56], None)


def test_a_run_names_the_model_of_the_hub_that_it_begins_with(data, tmp_path):
    weights = f"models--who--tiny/snapshots/{40 * 'c'}"
    prepare(data, tmp_path / "run", weights=weights, init_from="who/tiny")
    facts = RunFolder(tmp_path / "run").read_facts()
    assert (facts["base_model"], facts["init_from_revision"]) == ({"name": "who/tiny"}, 40 * "c")


def test_a_run_with_other_settings_or_data_is_refused_by_key(data, tmp_path):
    output = tmp_path / "run"
    prepare(data, output)
    prepare(data, output, world_size=2, zero_stage=2, micro_tokens=99)
    phases = [dataclasses.replace(PHASES[0], peak_lr=0.5), PHASES[1]]
    both = r"phases\.0\.peak_lr was 0\.02 and is now 0\.5; seed was 0 and is now 4"
    with pytest.raises(ValueError, match=both):
        prepare(data, output, phases=phases, seed=4)
    with pytest.raises(ValueError, match=r"masking was 'static' and is now '0\.3-0\.15'\. Give"):
        prepare(data, output, masking="0.3-0.15")
    with pytest.raises(ValueError, match=r"phases was .* and is now"):
        prepare(data, output, phases=PHASES[:1])
    hashes = r"root hash of data data \(.*\) was \w{16} and is now \w{16}; settings hash of"
    with pytest.raises(ValueError, match=hashes):
        prepare(data, output, dataset=write_tiny_dataset(tmp_path / "other", seed=1))
    settings, heavier = settings_for(data, output), open_mixture([f"{data}:3"])
    with pytest.raises(ValueError, match=r"weight of data data \(.*\) was 1 and is now 3\. Give"):
        prepare_run(settings, heavier, preset("tiny"), 1)


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json"])
def test_a_changed_vocabulary_of_any_dataset_is_refused_at_every_launch(data, tmp_path, name):
    """Of one dataset, before its run begins and when it goes on; of the second of a mixture."""
    folder, output = shutil.copytree(data, tmp_path / "data"), tmp_path / "run"
    path = folder / name
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b"w17", b"w1x"))
    changed = rf"{name} is not the file that manifest.json speaks of: its sha256 is \w{{64}}, "
    with pytest.raises(ValueError, match=changed):
        prepare(folder, output)
    assert not output.exists(), "nothing is begun"
    path.write_bytes(sound)
    prepare(folder, output)
    path.write_bytes(sound + b" ")
    with pytest.raises(ValueError, match=changed):
        prepare(folder, output)
    assert (output / name).read_bytes() == sound
    mixture = open_mixture([f"a={data}", f"b={folder}"])
    with pytest.raises(ValueError, match=changed):
        prepare_run(settings_for(data, tmp_path / "mixed"), mixture, preset("tiny"), 1)


def test_what_the_folder_keeps_of_the_vocabulary_is_made_anew_when_a_run_goes_on(data, tmp_path):
    prepare(data, output := tmp_path / "run")
    for name in ("vocab.txt", "tokenizer.json"):
        (output / name).write_text("other")
        with pytest.raises(ValueError, match=f"{name} is not what the run was trained with"):
            RunFolder(output).read_vocabulary(name)
        prepare(data, output)
        assert RunFolder(output).read_vocabulary(name) == (data / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", b'{"id": "a", "mo', r"run\.json is damaged, it is not JSON: .* line 1 column"),
        ("run.json", b"[]", r"run\.json is damaged: it holds \[\], expected a JSON object; rest"),
        ("run.json", b"{}", r"run\.json lacks id: it is damaged, or of an earlier version; res"),
        ("config.yaml", b"seed: [", r"config\.yaml is damaged, it is not YAML: "),
        (
            "config.yaml",
            b"17",
            r"config\.yaml is damaged: it holds '17', expected keys and values; ",
        ),
        (
            "config.yaml",
            b"seed: 0\n",
            r"holds a run with other settings: .*objective was None and is now 'mlm\+nsp'.*"
            "Give the settings it was started with to continue it, or another --output$",
        ),
    ],
)
def test_a_damaged_run_is_named_when_it_goes_on(data, tmp_path, name, content, message):
    prepare(data, output := tmp_path / "run")
    (output / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        prepare(data, output)
    assert (output / name).read_bytes() == content, "what is there is left to its owner"


def test_another_schedule_is_told_how_to_go_on_from_the_run(data, tmp_path):
    prepare(data, output := tmp_path / "run")
    others = [Phase(16, 12, 9, 0.02)]
    said = rf"phases.*, or a new run in another --output goes on .* with --continue_from {output}$"
    with pytest.raises(ValueError, match=said):
        prepare(data, output, phases=others)
    with pytest.raises(ValueError, match=r"to continue it, or another --output$"):
        prepare(data, output, phases=others, seed=5)


def test_settings_that_are_lost_are_not_taken_for_the_ones_asked_for(data, tmp_path):
    """But a first launch that was killed before it wrote them trained nothing."""
    prepare(data, output := tmp_path / "run")
    (output / "config.yaml").unlink()
    prepare(data, output, seed=5)
    (output / "checkpoints" / "step-00000002").mkdir()
    (output / "config.yaml").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.yaml is missing; restore it"):
        prepare(data, output, seed=5)


@pytest.mark.parametrize("killed_at", ["left_out.txt", "run.json", "vocab.txt", "config.yaml"])
def test_a_first_launch_that_is_killed_leaves_a_folder_that_the_next_one_takes(
    data, tmp_path, monkeypatch, killed_at
):
    """As a kill leaves it: with the temporary file of the write that it interrupted."""
    settings = settings_for(data, tmp_path / "run")

    def replace_or_die(path, content):
        if path.name == killed_at:
            path.parent.mkdir(exist_ok=True)
            path.with_name(f".{path.name}.partial-1-0123abcd").touch()
            raise KeyboardInterrupt
        replace_file(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("trainer.runs.run_folder.replace_file", replace_or_die)
        with pytest.raises(KeyboardInterrupt):
            prepare_run(settings, mixture_of(data), preset("tiny"), 1, left_out=(255,))
    prepare_run(settings, mixture_of(data), preset("tiny"), 1, left_out=(255,))
    run = RunFolder(tmp_path / "run")
    assert run.read_left_out() == (255,)
    assert run.config.is_file()
    assert run.checkpoints.is_dir()


def test_a_folder_with_something_else_is_refused(data, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    for output in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(FileExistsError, match="is not a run"):
            prepare(data, output)


@pytest.mark.engines
def test_a_dataset_that_holds_nothing_out_is_trained_on_and_the_run_says_so(tmp_path):
    data = write_tiny_dataset(tmp_path / "bare", seq_lens=(16, 32), has_validation=False)
    said = launch(OURS, write_config(data, tmp_path / "run", steps=2), 1)
    for seq_len in (16, 32):
        assert f"no validation loss of bare: no documents are held out at {seq_len} tokens" in said
    assert [row["split"] for row in rows_of(tmp_path / "run")] == ["train"] * 4
    assert rows_of(tmp_path / "run", "validation") == []


@pytest.mark.engines
def test_a_mixture_is_trained_measured_and_continued_past_skipped_data(data, tmp_path):
    """Two datasets, weights 3 and 1; killed, then continued without the positions 60 to 83."""
    write_tiny_dataset(tmp_path / "more", seq_lens=(16, 32), instances=100, seed=5)
    command = write_config(data, tmp_path / "run")
    mixed = [*command, "--data", f"big={data}:3", f"small={tmp_path / 'more'}"]
    launch(meeting("kill", 4), mixed, 1, expected=9)
    said = launch(OURS, [*mixed, "--skip", "0:60-84"], 2)
    rows = rows_of(tmp_path / "run")
    assert [row["position"] for row in rows] == [0, 12, 24, 36, 48, 84, 96, 108, 0, 7, 14, 21, 28]
    last = rows[-1]["drawn"]
    # Word 0 0 1 0: of 96 positions of the first phase 72 and 24, of 35 of the second 26 and 9.
    assert (last["big"]["instances"], last["small"]["instances"]) == (98, 33)
    assert last["big"]["tokens"] + last["small"]["tokens"] == sum(row["tokens"] for row in rows)
    assert rows[7]["epochs"]["big"] == pytest.approx(90 / 450)
    measured = rows_of(tmp_path / "run", "validation")[-1]
    big, small = measured["datasets"]["big"], measured["datasets"]["small"]
    assert (big["instances"], small["instances"], measured["instances"]) == (60, 20, 80)
    assert measured["mlm_loss"] == pytest.approx((3 * big["mlm_loss"] + small["mlm_loss"]) / 4)
    assert "  small: validation MLM loss" in said


def test_a_run_that_is_refused_leaves_only_what_was_there(data, tmp_path):
    """The weights are read last of all, after the run's folder is made."""
    (tmp_path / "weights").mkdir()
    refused = {"init_from": str(tmp_path / "weights")}
    output = tmp_path / "runs" / "first" / "run"
    (tmp_path / "runs").mkdir()
    arguments = tiny_run.write_config(tmp_path / "run", data, **refused)
    said = launch(OURS, [*arguments, "--output", str(output)], 1, expected=2)
    assert "weights holds nothing; " in said
    assert list((tmp_path / "runs").iterdir()) == []

    output.mkdir(parents=True)
    launch(OURS, [*arguments, "--output", str(output)], 1, expected=2)
    assert output.is_dir(), "it was there before"
