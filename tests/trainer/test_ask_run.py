"""`ask`, held to what the trainer's own loader reads and to a reading of every block."""

import dataclasses
import json
import re
import shutil
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipeline.shards.dataset import open_dataset, read_blocks
from pipeline.shards.document_list import format_document_list
from pipeline.shards.growing import PLAN, UNKNOWN_HASH, WaitPolicy, publish_pass
from pipeline.storage.folder import Folder
from tests.datasets import write_dataset
from trainer.ask import answers
from trainer.ask.asked_run import opened_run
from trainer.ask.asked_stream import rollbacks
from trainer.ask.made_steps import Anomaly, read_made_steps
from trainer.ask.settings import AskSettings
from trainer.ask.step_instances import StepReader
from trainer.checkpoints.files import COMMITTED, FORMAT, STATE, describe_file
from trainer.cli import main
from trainer.guards.spike_guard import SpikeGuard
from trainer.pretrain import loop
from trainer.pretrain.run import Position
from trainer.runs.run_folder import dataset_facts, describe_left_out, to_yaml
from trainer.settings import Phase, PretrainSettings
from trainer.stream.left_out import LeftOutDocuments
from trainer.stream.order.source import open_mixture

SEQ_LENS = (2048, 4096)
BLOCK_SIZES = {2048: 32, 4096: 16}
SETTINGS = {"lower_case": True, "whole_word_masking": False, "seed": 1}
SETTINGS |= {"masked_lm_prob": 0.15, "max_predictions": 4}
COUNTS = SimpleNamespace(tokens=1, instances=1, drawn=(), elapsed_seconds=0.0)


def write_documents(folder, make_block, first_document, sizes=((70, 45), (50, 60))):
    """Two passes of two shards of two lengths; instances are of 20 documents of 12 each."""
    rng = np.random.default_rng(first_document)
    shards = {}
    first_id = 0
    for seq_len in SEQ_LENS:
        for pass_index, of_pass in enumerate(sizes):
            for bucket, size in enumerate(of_pass):
                full = BLOCK_SIZES[seq_len]
                blocks = []
                for start in range(0, size, full):
                    block = make_block(min(full, size - start), first_id, 40, first_document)
                    first_id += 100
                    first = first_document + 40 * bucket
                    block.document_a[:] = rng.integers(first, first + 20, block.num_instances)
                    other = rng.integers(first + 20, first + 40, block.num_instances)
                    block.document_b[:] = np.where(block.is_random_next, other, block.document_a)
                    blocks.append(block)
                shards["train", seq_len, pass_index, bucket] = blocks
    write_dataset(folder, shards, 100, SETTINGS)
    return str(folder)


class Recorded:
    """A run whose steps are read by the trainer's own loader, but trained on by nobody.

    Attributes:
        path: Its folder, with settings, facts, metrics and checkpoints.
        read: By the step's number: first position, and input_ids, masked positions and labels of
            every instance in the order of slots.
        refused: The same of every step whose gradient was not used, after the step's number.
    """

    def __init__(self, path, entries, phases, interval=4, refuse=(), left_out=(), **settings):
        self.path = path
        self.left_out = left_out
        self.mixture = open_mixture(entries)
        self.settings = PretrainSettings(
            data=list(entries), output=str(path), phases=phases, seed=3, **settings
        )
        self.read = {}
        self.refused = []
        path.mkdir()
        facts = {"id": "0", "model": {}, "launches": [], "masking": self.settings.masking}
        facts["datasets"] = [dataset_facts(source) for source in self.mixture]
        if left_out:
            facts["left_out"] = describe_left_out(left_out)
            (path / "left_out.txt").write_bytes(format_document_list(left_out))
        (path / "run.json").write_text(json.dumps(facts))
        (path / "config.yaml").write_text(to_yaml(self.settings))
        self._train(interval, {*refuse})

    def _train(self, interval, refuse):
        """Goes back to the last checkpoint once five positions of `refuse` follow each other."""
        guard = SpikeGuard(self.settings.safety, {})
        cache = str(self.path.parent / "cache")
        documents = LeftOutDocuments(self.left_out, cache) if self.left_out else None
        run = SimpleNamespace(
            mixture=self.mixture, settings=self.settings, guard=guard, must_stop=False,
            watchdog=SimpleNamespace(beat=lambda *_: None), wait_policy=WaitPolicy(),
            ranks=SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu")),
            position=Position(), step_started=0.0, left_out=documents,
        )  # fmt: skip
        saved = [run.position]
        anomalies, rows = [], {}
        while run.position.phase < len(self.settings.phases):
            index = run.position.phase
            phase = self.settings.phases[index]
            for rank_step, _, _ in loop._steps_of_phase(run, phase):
                ends = run.position.phase_step + 1 == phase.steps
                run.position = loop._advance(run.position, ends, COUNTS, rank_step.state)
                step, start = run.position.step, rank_step.first_position
                is_fine = guard.note(
                    1.0 if start not in refuse else float("inf"), step, index,
                    (start, rank_step.state["position"]),
                )  # fmt: skip
                if not is_fine:
                    anomalies.append(
                        {"step": step, "phase": index, "grad_norm": "inf", "limit": None,
                         "positions": [start, rank_step.state["position"]],
                         "in_a_row": guard.streak.length, "instances": []}
                    )  # fmt: skip
                if not is_fine:
                    self.refused.append((step, start, instances_of(rank_step)))
                if guard.has_enough:
                    run.position = saved[-1]
                    guard = guard.went_back(SpikeGuard(self.settings.safety, {}))
                    run.guard = guard
                    break
                self.read[step] = (start, instances_of(rank_step))
                rows[step] = {"step": step, "split": "train", "phase": index, "position": start}
                rows[step] |= {"loss": 1.0, "instances": phase.global_batch}
                if is_fine and step % interval == 0:
                    saved.append(run.position)
                    self._save(run.position, guard)
            else:
                continue
            self.read = {
                step: read for step, read in self.read.items() if step <= run.position.step
            }
            rows = {step: row for step, row in rows.items() if step <= run.position.step}
        lines = [json.dumps(row) + "\n" for row in rows.values()]
        lines.insert(2, json.dumps({"step": 2, "split": "validation", "mlm_loss": 1.0}) + "\n")
        (self.path / "metrics.jsonl").write_text("".join(lines))
        if anomalies:
            text = "".join(json.dumps(row) + "\n" for row in anomalies)
            (self.path / "anomalies.jsonl").write_text(text)

    def _save(self, position, guard):
        folder = self.path / "checkpoints" / f"step-{position.step:08d}"
        folder.mkdir(parents=True)
        state = {**vars(position), "guard": guard.to_dict(), "format": FORMAT, "fragments": {}}
        (folder / STATE).write_text(json.dumps(state))
        files = {STATE: describe_file(folder / STATE)}
        (folder / COMMITTED).write_text(json.dumps({"files": files}))

    def ask(self, capsys, *flags, expected=0):
        """The records of an answer, or the lines of an error."""
        code = main(
            ["ask", str(self.path), *flags, "--format", "jsonl", "--origins", "false",
             "--cache_dir", str(self.path.parent / "cache")]
        )  # fmt: skip
        printed = capsys.readouterr()
        assert code == expected, printed
        if expected:
            return printed.err
        return [json.loads(line) for line in printed.out.splitlines()]


def instances_of(rank_step):
    """Tokens as shown, masked positions and labels of each instance of a step."""
    found = []
    for batch in rank_step.micro_batches:
        masked = batch.masked_positions.tolist()
        labels = batch.masked_labels.tolist()
        bounds = batch.cu_seqlens.tolist()
        for start, stop in pairwise(bounds):
            places = [n for n, position in enumerate(masked) if start <= position < stop]
            found.append(
                (
                    batch.input_ids[start:stop].tolist(),
                    [masked[n] - start for n in places],
                    [labels[n] for n in places],
                )
            )
    return found


def text_of(ids, positions, labels):
    original = list(ids)
    for position, label in zip(positions, labels, strict=True):
        original[position] = label
    return tuple(original)


def every_instance(mixture):
    """Every train instance by its text: dataset, shard, row, and the documents of A and B."""
    known = {}
    for source in mixture:
        for shard in source.dataset.all_shards:
            row = 0
            for block in read_blocks(source.dataset, shard):
                for n in range(block.num_instances):
                    one = block.slice(n, n + 1)
                    text = text_of(
                        one.input_ids.tolist(), one.masked_lm_positions.tolist(),
                        one.masked_lm_ids.tolist(),
                    )  # fmt: skip
                    assert text not in known, "instances can be told apart"
                    documents = int(one.document_a[0]), int(one.document_b[0])
                    known[text] = (source.name, shard.name, row, *documents)
                    row += 1
    return known


def phases(*sizes):
    """Of (length, global batch, steps)."""
    return [Phase(*size, peak_lr=1e-3) for size in sizes]


@pytest.fixture(scope="module")
def data(tmp_path_factory, make_block):
    """Two datasets."""
    folder = tmp_path_factory.mktemp("data")
    return [
        write_documents(folder / name, make_block, first)
        for name, first in (("a", 1000), ("b", 9000))
    ]


def plain(path, data):
    return Recorded(path, [data[0]], phases((2048, 12, 30)))


def mixed(path, data):
    """Phases of two lengths; the third goes on where the first ended, with another batch."""
    entries = [f"a={data[0]}:3", f"b={data[1]}"]
    return Recorded(path, entries, phases((2048, 12, 17), (4096, 10, 8), (2048, 9, 14)))


def redrawn(path, data):
    """Masks drawn anew, a stretch that is skipped, and a rollback."""
    refuse = [24, 72, 84, 96, 108, 120, 190]
    return Recorded(
        path, [data[0]], phases((2048, 12, 26)), refuse=refuse, masking="0.3-0.15",
        skip=["0:130-149", "0:160-163"],
    )  # fmt: skip


def leaving_out(path, data):
    """Of each dataset the instances of some documents are left out, from the first step on."""
    entries = [f"a={data[0]}:2", f"b={data[1]}"]
    return Recorded(
        path, entries, phases((2048, 12, 20), (2048, 9, 14)), skip=["0:50-77"],
        left_out=(1003, 1047, 1048, 9001, 9021),
    )  # fmt: skip


RUNS = {"plain": plain, "mixed": mixed, "redrawn": redrawn, "leaving_out": leaving_out}


@pytest.fixture(scope="module", params=RUNS)
def run(request, tmp_path_factory, data):
    with pytest.MonkeyPatch.context() as patch:
        # As in large datasets; these here would have one lane, and then their order is the same.
        for module in ("trainer.stream.step", "trainer.ask.asked_stream"):
            patch.setattr(f"{module}.default_num_lanes", lambda batch, *_: batch)
        yield RUNS[request.param](tmp_path_factory.mktemp("runs") / request.param, data)


def test_steps_have_the_instances_that_the_trainer_read(run, capsys):
    known = every_instance(run.mixture)
    records = run.ask(capsys, "--step", f"1-{max(run.read)}")
    steps = [record for record in records if record["kind"] == "step"]
    assert [step["step"] for step in steps] == sorted(run.read)
    assert [step["position"] for step in steps] == [run.read[step][0] for step in sorted(run.read)]
    found = {step: [] for step in run.read}
    for record in records:
        if record["kind"] == "instance":
            assert record["slot"] == len(found[record["step"]])
            masks = record["masked_lm_positions"], record["masked_lm_ids"]
            found[record["step"]].append((record["input_ids"], *masks))
            documents = int(record["document_a"], 16), int(record["document_b"], 16)
            where = record["dataset"], record["shard"], record["row"], *documents
            assert known[text_of(record["input_ids"], *masks)] == where
    assert found == {step: instances for step, (_, instances) in run.read.items()}


def test_reads_of_documents_are_those_of_every_block(run, capsys):
    known = every_instance(run.mixture)
    reads = {}
    for step, (_, instances) in run.read.items():
        for slot, instance in enumerate(instances):
            dataset, shard, row, a, b = known[text_of(*instance)]
            for document in {a, b}:
                place = step, slot, dataset, shard, row, a == document, b == document
                reads.setdefault(document, []).append(place)
    lengths = {f"/L{phase.seq_len}/" for phase in run.settings.phases}
    held = [place[3:] for place in known.values() if any(each in place[1] for each in lengths)]
    documents = sorted({*chain.from_iterable(held)})
    assert set(reads) <= set(documents) - set(run.left_out)
    assert len(reads) > 60
    names = [f"{document:016x}" for document in documents]
    records = run.ask(capsys, "--document", *names)
    found = {}
    for record in records:
        if record["kind"] == "document":
            summary = record
            found[int(record["id"], 16)] = []
            before = [step for step in run_checkpoints(run) if step < (record["first_step"] or 1e9)]
            assert record["checkpoints_before"] == before
            continue
        place = [record[name] for name in ("step", "slot", "dataset", "shard", "row")]
        found[int(summary["id"], 16)].append((*place, record["is_a"], record["is_b"]))
    assert found == {document: sorted(reads.get(document, [])) for document in documents}
    summaries = [record for record in records if record["kind"] == "document"]
    for record in summaries:
        of_document = reads.get(int(record["id"], 16), [])
        assert record["reads"] == len(of_document)
        assert record["as_a"] == sum(place[5] for place in of_document)
        assert record["as_random_b"] == sum(not place[5] for place in of_document)
        assert record["steps"] == len({place[0] for place in of_document})
        assert record["is_left_out"] == (int(record["id"], 16) in run.left_out)


def run_checkpoints(run):
    names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    return [int(name.removeprefix("step-")) for name in names]


def test_refused_steps_have_the_instances_that_they_were_refused_for(run, capsys):
    records = run.ask(capsys, "--spikes")
    steps = [record for record in records if record["kind"] == "step"]
    assert [(step["step"], step["position"]) for step in steps] == [
        (step, start) for step, start, _ in run.refused
    ]
    is_redrawn = run.settings.masking != "static"
    assert len(steps) == (7 if is_redrawn else 0)
    kept = [(step, start) for step, start, _ in run.refused if run.read.get(step, [0])[0] == start]
    assert len(kept) == (2 if is_redrawn else 0), "five were undone"
    for record in steps:
        assert not record["is_used"]
        assert record["grad_norm"] == "inf"
        assert record["is_undone"] == ((record["step"], record["position"]) not in kept)
    found = [
        (record["input_ids"], record["masked_lm_positions"], record["masked_lm_ids"])
        for record in records
        if record["kind"] == "instance"
    ]
    assert found == [instance for _, _, instances in run.refused for instance in instances]


@pytest.fixture(scope="module")
def asked(tmp_path_factory, data):
    """A plain run of 30 steps, which a test may spoil a copy of."""
    return plain(tmp_path_factory.mktemp("asked") / "run", data)


@pytest.fixture
def copied(asked, tmp_path):
    """A copy of it."""
    copy = object.__new__(Recorded)
    vars(copy).update(vars(asked), path=tmp_path / "run")
    shutil.copytree(asked.path, copy.path)
    return copy


def some_document(asked):
    """A document that the run has read, as 16 digits."""
    known = every_instance(asked.mixture)
    return f"{known[text_of(*asked.read[5][1][0])][3]:016x}"


def test_reads_in_steps_whose_gradient_was_not_used_are_marked(copied, capsys):
    start = copied.read[5][0]
    row = {"step": 5, "phase": 0, "grad_norm": 99.5, "limit": 10.0, "in_a_row": 1}
    row["positions"] = [start, start + 12]
    undone = {**row, "positions": [start + 1, start + 13]}
    (copied.path / "anomalies.jsonl").write_text(f"{json.dumps(undone)}\n{json.dumps(row)}\n")
    records = copied.ask(capsys, "--document", some_document(copied))
    unused = {record["step"] for record in records if record.get("is_used") is False}
    assert unused == {5}
    [step, *_] = copied.ask(capsys, "--step", "5")
    assert (step["grad_norm"], step["limit"], step["is_undone"]) == (99.5, 10.0, False)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            (),
            "nothing is asked: give --step, --spikes, --document, --text, --certificate or --blame",
        ),
        (("--step", "0"), "step is '0'; give a step such as 1200, counted from 1, or a range"),
        (("--step", "5-3"), "step is '5-3'; give a step"),
        (("--step", "1,2"), "step is '1,2'; give a step"),
        (
            ("--step", "3", "--spikes"),
            "--step and --spikes are 2 questions: ask one after the other",
        ),
        (("--step", "3", "--document", "0" * 16), "ask one after the other"),
        (("--step", "31"), "has not made step 31: its last step is 30"),
        (("--step", "29-40"), "has not made step 31: its last step is 30"),
        (("--document", "0" * 16), f"{'0' * 16}: no dataset of .*run has this document .*/a"),
        (("--document", "xyz"), "'xyz' names no document: expected the first 16 to 32 hex digits"),
        (("--document", "wiki:a.jsonl:3"), "no dataset of .* has a source 'wiki'; they have none"),
        (("--text", "missing.txt"), "No such file or directory: 'missing.txt'|missing.txt"),
        (("--step", "3", "--data", "x", "y"), "--data names 2 dataset.s., .* was trained on 1: a"),
        (("--step", "3", "--data", "/nowhere"), "/nowhere holds no manifest.json.*--data says wh"),
    ],
)
def test_questions_that_cannot_be_answered(asked, capsys, flags, message):
    error = asked.ask(capsys, *flags, expected=2)
    assert re.search(message, error), error
    assert sum("error:" in line for line in error.splitlines()) == 1
    assert "error:" in error.splitlines()[-1]


def test_a_run_that_is_none(tmp_path, capsys):
    assert main(["ask", str(tmp_path / "none"), "--step", "3"]) == 2
    assert re.search("none holds no run.json; give the --output", capsys.readouterr().err)


def test_instances_are_described_one_by_one(asked, monkeypatch):
    """The tokens of a step of 65,536 instances as plain values would take gigabytes at once."""
    slots = []

    def describe(run, content, slot, vocabulary):
        slots.append(slot)
        return {"kind": "instance", "slot": slot}

    monkeypatch.setattr(answers, "describe_slot", describe)
    with opened_run(str(asked.path)) as run:
        records = answers.answer_steps(run, StepReader(run).read([3]), None)
        assert next(records)["instances"] == 12
        assert slots == []
        assert [next(records)["slot"] for _ in range(2)] == slots == [0, 1]


def test_a_document_that_the_build_dropped_is_not_at_its_place(tmp_path, monkeypatch):
    """A near-duplicate is among the encoded documents, but not in documents.ids."""
    kept, dropped = "2b" * 16, "7f" * 16
    folder = Folder(str(tmp_path / "data"))
    folder.write("documents.ids", bytes.fromhex(kept))
    manifest = SimpleNamespace(sources=[{"name": "news"}])
    dataset = SimpleNamespace(folder=folder, manifest=manifest, url="data")
    run = SimpleNamespace(name="run", mixture=[SimpleNamespace(dataset=dataset)])
    origins = SimpleNamespace(tokens=lambda _: "tokens")
    places = {"a.jsonl:1": [kept], "a.jsonl:2": [dropped]}
    monkeypatch.setattr(
        "trainer.ask.answers.find_at_place", lambda *arguments: places[arguments[2].place]
    )
    [found] = answers.name_documents(run, ["news:a.jsonl:1"], [], origins)
    assert (found.id, found.is_known) == (kept, True)
    with pytest.raises(ValueError, match=r"news:a.jsonl:2: no dataset of run has this document"):
        answers.name_documents(run, ["news:a.jsonl:2"], [], origins)


def test_another_dataset_is_refused(asked, data, capsys):
    error = asked.ask(capsys, "--step", "3", "--data", data[1], expected=2)
    assert re.search("/b is not the dataset a that .*run was trained on: its root hash is", error)


def test_a_dataset_that_was_moved_is_found(asked, data, tmp_path, capsys):
    moved = shutil.copytree(data[0], tmp_path / "moved")
    expected = asked.ask(capsys, "--step", "3")
    assert asked.ask(capsys, "--step", "3", "--data", str(moved)) == expected


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"position": 60',
            '"position": 61',
            "step 6 begins at position 61, expected 60 by the run",
        ),
        ('{"step": 9, "split": "train"', '{"split": "train", "step": "x"', "line 10: step, phase"),
        ('{"step": 9,', "[9,", "metrics.jsonl, line 10 is no row"),
        (
            '"step": 9, "split": "train", "phase": 0',
            '"step": 9, "split": "train", "phase": 7',
            r"metrics.jsonl has a step of phase 7, config.yaml has 1 phase\(s\), counted from 0",
        ),
        ('"position": 60', f'"position": {10**20}', f"line 7: step, phase and .* 0, {10**20}"),
    ],
)
def test_rows_that_do_not_fit_are_named(copied, capsys, old, new, message):
    path = copied.path / "metrics.jsonl"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    error = copied.ask(capsys, "--step", "5-6", expected=2)
    assert re.search(message, error), error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phase": 7}, "anomalies.jsonl has a step of phase 7, config.yaml has 1 phase"),
        ({"grad_norm": None}, "anomalies.jsonl, line 1 is no row of a step: .*grad_norm is None"),
        ({"limit": "x"}, "anomalies.jsonl, line 1 is no row of a step: .*limit is 'x'"),
    ],
)
def test_anomalies_that_do_not_fit_are_named(copied, capsys, change, message):
    row = {"step": 5, "phase": 0, "grad_norm": 99.5, "limit": None, "in_a_row": 1}
    row |= {"positions": [copied.read[5][0], copied.read[5][0] + 12]}
    (copied.path / "anomalies.jsonl").write_text(json.dumps(row | change) + "\n")
    error = copied.ask(capsys, "--spikes", expected=2)
    assert re.search(message, error), error


def test_rows_of_steps_are_read_whatever_their_form(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [
        {"step": 1, "split": "train", "phase": 0, "position": 0, "loss": 1.0},
        {"step": 1, "split": "validation", "loss": 1.0},
        {"loss": 1.0, "position": 7, "phase": 1, "step": 2, "split": "train"},
        {"step": 3, "split": "train", "phase": 1, "position": 8},
        {"step": 2, "split": "train", "phase": 1, "position": 9, "loss": 1.0},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 4, "spl')
    made = read_made_steps(path, "here")
    assert made.step.tolist() == [1, 2, 3]
    assert made.phase.tolist() == [0, 1, 1]
    assert made.position.tolist() == [0, 9, 8]
    assert [made.find(step) for step in (1, 3, 4)] == [0, 2, None]
    assert len(read_made_steps(tmp_path / "none", "here")) == 0


def test_stretches_of_rollbacks():
    def anomaly(step, phase, start, in_a_row):
        return Anomaly(step, phase, start, start + 12, in_a_row, "nan", None)

    single = [anomaly(3, 0, 24, 1)]
    first = [anomaly(7 + n, 0, 72 + 12 * n, n + 1) for n in range(5)]
    second = [anomaly(9 + n, 1, 300 + 12 * n, n + 1) for n in range(5)]
    cut = second[:3]
    found = rollbacks([*single, *first, *cut, *second])
    assert found == [(0, (72, 132)), (1, (300, 360))]


def test_a_run_that_continues_another_sends_earlier_questions_there(copied, capsys):
    document = some_document(copied)
    everything = copied.ask(capsys, "--document", document)
    facts = json.loads((copied.path / "run.json").read_text())
    facts["trunk"] = {"run": "s3://bucket/trunk", "step": 8, "id": "1"}
    (copied.path / "run.json").write_text(json.dumps(facts))
    lines = (copied.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    later = [line for line in lines if json.loads(line)["step"] > 8]
    (copied.path / "metrics.jsonl").write_text("".join(later))
    error = copied.ask(capsys, "--step", "8", expected=2)
    assert "step 8 of" in error
    assert "was made by the run that it continues: ask s3://bucket/trunk" in error
    [summary, *reads] = copied.ask(capsys, "--document", document)
    steps = [read["step"] for read in everything[1:]]
    assert summary["reads_before"] == sum(step <= 8 for step in steps) > 0
    assert [read["step"] for read in reads if read["step"]] == [step for step in steps if step > 8]
    assert summary["trunk"] == "s3://bucket/trunk"


def test_a_table_and_a_page_say_the_same(asked, tmp_path, capsys):
    cache = ("--cache_dir", str(tmp_path / "cache"))
    document = some_document(asked)
    [summary, *reads] = asked.ask(capsys, "--document", document)
    words = f"{summary['reads']} times in {summary['steps']} steps"
    assert main(["ask", str(asked.path), "--document", document, *cache]) == 0
    printed = capsys.readouterr()
    assert words in printed.out
    assert re.findall(r"^ +(\d+)  .*\.tar#", printed.out, re.MULTILINE) == [
        str(read["step"]) for read in reads
    ]
    assert "where documents are from is not known any more" in printed.err
    page = tmp_path / "page.html"
    for question, count in ((("--document", document), 0), (("--step", "3-4"), 24)):
        flags = ("--format", "html", "--output", str(page), *cache)
        assert main(["ask", str(asked.path), *question, *flags]) == 0
        assert page.read_text().count("<article") == count
        assert (words in page.read_text()) == (not count)
    capsys.readouterr()
    assert (
        main(["ask", str(asked.path), "--step", "3", "--output", str(tmp_path / "t"), *cache]) == 0
    )
    table = (tmp_path / "t").read_text()
    assert len(re.findall(r"^ +\d+  [0-9a-f]{16}  ", table, re.MULTILINE)) == 12


def test_a_run_at_a_url_is_asked_like_one_on_this_machine(asked, bucket, tmp_path, capsys):
    for path in asked.path.rglob("*"):
        if path.is_file():
            bucket.pipe_file(f"/runs/one/{path.relative_to(asked.path)}", path.read_bytes())
    for name in ("vocab.txt", "tokenizer.json"):
        bucket.pipe_file(f"/runs/one/{name}", asked.mixture[0].dataset.read_file(name))
    for question in (("--step", "7-8"), ("--document", some_document(asked))):
        flags = (*question, "--format", "jsonl", "--cache_dir", str(tmp_path), "--origins", "false")
        code = main(["ask", "memory://runs/one", *flags])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        records = [json.loads(line) for line in printed.out.splitlines()]
        expected = asked.ask(capsys, *question)
        assert all(record["is_used"] is None for record in records if "is_used" in record)
        assert [{**record, "is_used": 0} for record in records] == [
            {**record, "is_used": 0} for record in expected
        ]
    assert main(["ask", "memory://runs/one", "--spikes"]) == 2
    assert "memory://runs/one has no anomalies.jsonl: the version that" in capsys.readouterr().err
    assert main(["ask", "memory://runs/one", "--step", "7", "--format", "html"]) == 2
    assert "--output says which file the page goes to" in capsys.readouterr().err


def test_refused_gradients_are_known_at_a_url_too(copied, bucket, tmp_path, capsys):
    start = copied.read[5][0]
    row = {"step": 5, "phase": 0, "grad_norm": 99.5, "limit": 10.0, "in_a_row": 1}
    row["positions"] = [start, start + 12]
    (copied.path / "anomalies.jsonl").write_text(json.dumps(row) + "\n")
    for path in copied.path.rglob("*"):
        if path.is_file():
            bucket.pipe_file(f"/runs/two/{path.relative_to(copied.path)}", path.read_bytes())
    for name in ("vocab.txt", "tokenizer.json"):
        bucket.pipe_file(f"/runs/two/{name}", copied.mixture[0].dataset.read_file(name))
    flags = ("--spikes", "--format", "jsonl", "--cache_dir", str(tmp_path), "--origins", "false")
    assert main(["ask", "memory://runs/two", *flags]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert records == copied.ask(capsys, "--spikes")
    assert (records[0]["step"], records[0]["is_used"], records[0]["grad_norm"]) == (5, False, 99.5)


def test_a_dataset_that_is_still_being_built_is_asked(asked, data, tmp_path, capsys):
    """Pass 0 alone is there, in which the first steps read."""
    whole = open_dataset(data[0])
    folder = Folder(str(tmp_path / "growing"))
    unknown = {"root_hash": UNKNOWN_HASH, "tables_sha256": {}}
    plan = dataclasses.replace(whole.manifest, **unknown)
    folder.write(PLAN, plan.to_json())
    for name in ("vocab.txt", "tokenizer.json"):
        folder.write(name, whole.read_file(name))
    for shard in whole.shards("train", 2048, 0):
        folder.write(shard.name, Path(data[0], shard.name).read_bytes())
    rows = [(shard, whole.blocks(shard)) for shard in whole.shards("train", 2048, 0)]
    publish_pass(folder, rows, whole.manifest.settings_hash)

    expected = asked.ask(capsys, "--step", "1-8")
    run = tmp_path / "run"
    shutil.copytree(asked.path, run, ignore=shutil.ignore_patterns("checkpoints"))
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    early = [line for line in lines if json.loads(line)["step"] <= 8]
    (run / "metrics.jsonl").write_text("".join(early))
    facts = json.loads((run / "run.json").read_text())
    facts["datasets"][0] |= {"url": folder.url, "root_hash": None}
    (run / "run.json").write_text(json.dumps(facts))
    copy = object.__new__(Recorded)
    vars(copy).update(vars(asked), path=run)
    found = copy.ask(capsys, "--step", "1-8")
    without = [{**record, "checkpoints_before": []} for record in expected]
    assert [{**record, "checkpoints_before": []} for record in found] == without
    reads = copy.ask(capsys, "--document", some_document(asked))[1:]
    all_reads = asked.ask(capsys, "--document", some_document(asked))[1:]
    assert reads == [read for read in all_reads if read["step"] <= 8]


def test_settings_name_steps():
    assert AskSettings(run="r", step="1200").steps == range(1200, 1201)
    assert AskSettings(run="r", step="1200-1210").steps == range(1200, 1211)
    assert AskSettings(run="r", spikes=True).steps == range(0)
