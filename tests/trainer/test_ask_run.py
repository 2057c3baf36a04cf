"""`ask`, held to what the trainer's own loader reads and to a reading of every block."""

import json
from itertools import chain, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipeline.shards.dataset import read_blocks
from pipeline.shards.growing import WaitPolicy
from tests.datasets import write_dataset
from trainer.checkpoints.files import COMMITTED, FORMAT, STATE, describe_file
from trainer.cli import main
from trainer.guards.spike_guard import SpikeGuard
from trainer.pretrain import loop
from trainer.pretrain.run import Position
from trainer.runs.run_folder import dataset_facts, to_yaml
from trainer.settings import Phase, PretrainSettings
from trainer.stream.order.source import open_mixture

SEQ_LENS = (2048, 4096)
BLOCK_SIZES = {2048: 32, 4096: 16}
SETTINGS = {"lower_case": True, "whole_word_masking": False, "seed": 1}
SETTINGS |= {"masked_lm_prob": 0.15, "max_predictions": 4}
COUNTS = SimpleNamespace(tokens=1, instances=1, drawn=(), elapsed_seconds=0.0)
REFUSED = 5


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
    """

    def __init__(self, path, entries, phases, interval=4, refuse=(), until=10**9, **settings):
        self.path = path
        self.mixture = open_mixture(entries)
        self.settings = PretrainSettings(
            data=list(entries), output=str(path), phases=phases, seed=3, **settings
        )
        self.read = {}
        self.undone = []
        path.mkdir()
        facts = {"id": "0", "model": {}, "launches": [], "masking": self.settings.masking}
        facts["datasets"] = [dataset_facts(source) for source in self.mixture]
        (path / "run.json").write_text(json.dumps(facts))
        (path / "config.yaml").write_text(to_yaml(self.settings))
        self._train(interval, {*refuse}, until)

    def _train(self, interval, refuse, until):
        """Goes back to the last checkpoint once five positions of `refuse` follow each other."""
        guard = SpikeGuard(self.settings.safety, {})
        run = SimpleNamespace(
            mixture=self.mixture, settings=self.settings, guard=guard, must_stop=False,
            watchdog=SimpleNamespace(beat=lambda *_: None), wait_policy=WaitPolicy(),
            ranks=SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu")),
            position=Position(), step_started=0.0,
        )  # fmt: skip
        saved = [run.position]
        anomalies, rows = [], {}
        while run.position.phase < len(self.settings.phases) and run.position.step < until:
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
                if guard.has_enough:
                    self.undone.append((step, start, instances_of(rank_step)))
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
                run.must_stop = step == until
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
    refuse = [24, 72, 84, 96, 108, 120, 180]
    return Recorded(
        path, [data[0]], phases((2048, 12, 26)), refuse=refuse, masking="0.3-0.15",
        skip=["0:130-149", "0:160-163"],
    )  # fmt: skip


RUNS = {"plain": plain, "mixed": mixed, "redrawn": redrawn}


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
    assert set(reads) <= set(documents)
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


def run_checkpoints(run):
    names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    return [int(name.removeprefix("step-")) for name in names]
