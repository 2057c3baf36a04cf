"""Two ranks whose gradients or weights go bad: both skip alike, the rank at fault is named.

Run as a program, this file is one of the two ranks, which writes what it saw.
"""

import json
import math
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.tiny_run import BERT
from tests.trainer.two_ranks import random_micro_batch, run_ranks
from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.train_step import begin_to_agree, grad_norm, train_step
from trainer.engine.zero import start_engine
from trainer.guards.spike_guard import SpikeGuard
from trainer.guards.watchdog import HUNG, Peer, Watchdog, describe_hang
from trainer.guards.weights_check import CorruptWeightsError, WeightsCheck, checksum, find_suspects
from trainer.model.bert import build_model
from trainer.optim.adamw import AdamW
from trainer.optim.lamb import Lamb
from trainer.process.ranks import start_ranks, stop_ranks
from trainer.settings import SafetySettings

KINDS = [("adamw", 0, "fp32"), ("adamw", 3, "fp32"), ("adamw", 1, "bf16"), ("lamb", 2, "bf16")]
OPTIMIZERS = {"adamw": AdamW, "lamb": Lamb}
INTERVAL = 3
# ZeRO-3 leaves no rank the model's weights between steps.
PLACES = {False: ("model", "owned"), True: ("owned",)}


class Rank:
    """An engine, and steps of two micro-batches over both ranks."""

    def __init__(self, ranks, kind, stage, precision):
        self.ranks, self.step, self.model = ranks, 0, build_model(BERT, seed=3)
        self.optimizer = OPTIMIZERS[kind](self.model.named_parameters())
        self.optimizer.set_learning_rate(0.01)
        config = deepspeed_config({}, stage, precision)
        self.engine = start_engine(self.model, self.optimizer, config, ranks)

    def train(self):
        self.step += 1
        batches = [random_micro_batch([7, 5], 50, 10 * self.step + self.ranks.rank)]
        counts = begin_to_agree(self.ranks, batches, 0.0)()
        train_step(self.engine, self.ranks, batches, counts)
        return grad_norm(self.engine, self.optimizer)

    def spoil_next_gradient(self, factor):
        """Multiplies what this rank updates of the next gradient; without ZeRO both ranks' one."""

        def spoil(*_):
            for tensor in self.optimizer.owned:
                tensor.grad.mul_(factor)
            handle.remove()

        if self.ranks.rank == 1 or not self.optimizer.is_partitioned:
            handle = self.optimizer.register_step_pre_hook(spoil)

    def state(self):
        kinds = ("fp32", "exp_avg", "exp_avg_sq")
        sums = [int(checksum(self.optimizer.tensors(kind))) for kind in kinds]
        return [*sums, int(checksum(self.model.parameters())), self.optimizer.num_updates]


def flip(tensor, element, bit):
    words = tensor.detach().view(-1).view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
    words[element] ^= 1 << bit


def skips(ranks, *kind):
    """States around a NaN, and around a norm at the limit; then a step that is taken."""
    rank = Rank(ranks, *kind)
    norm = rank.train()
    states, norms = [rank.state()], []
    for factor, limit in ((math.nan, math.inf), (1000.0, 3 * norm)):
        rank.optimizer.norm_limit = limit
        rank.spoil_next_gradient(factor)
        norms.append(rank.train())
        states.append(rank.state())
    rank.train()
    return {"states": states, "norms": [str(each) for each in norms], "after": rank.state()}


def flips(ranks, *kind):
    """What is said of a bit flipped in rank 1, by place, and after how many steps."""
    found = {}
    for place in PLACES[kind[1] == 3]:
        rank = Rank(ranks, *kind)
        interval = 1 if rank.optimizer.is_partitioned else INTERVAL
        check = WeightsCheck(rank.engine, rank.optimizer, ranks, interval)
        for _ in range(4):
            rank.train()
        check.check()
        if ranks.rank == 1:
            tensors = list(rank.model.parameters()) if place == "model" else rank.optimizer.owned
            flip(tensors[0], 11, 3)
        steps = 0
        try:
            while steps < interval:
                steps += 1
                rank.train()
        except CorruptWeightsError as error:
            found[place] = [steps, str(error)]
    return found


def main(folder):
    ranks = start_ranks()
    results = {
        f"{kind}": {"skips": skips(ranks, *kind), "flips": flips(ranks, *kind)} for kind in KINDS
    }
    (folder / f"{ranks.rank}.json").write_text(json.dumps(results))
    stop_ranks()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guards")
    for process in run_ranks([__file__, str(folder)], world_size=2):
        assert process.returncode == 0, process.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.engines
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_bad_gradient_of_one_rank_moves_nothing_on_either(found, kind):
    first, second = (rank[f"{kind}"]["skips"] for rank in found)
    assert first["norms"] == second["norms"]
    assert first["norms"][0] in ("nan", "inf")
    assert float(first["norms"][1]) > 100
    for skipped in (first, second):
        before, after_nan, after_spike = skipped["states"]
        assert before == after_nan == after_spike
        assert skipped["after"][-1] == before[-1] + 1
        assert skipped["after"][:3] != before[:3]


@pytest.mark.engines
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_flipped_bit_is_found_and_the_rank_named(found, kind):
    for rank in found:
        flips = rank[f"{kind}"]["flips"]
        assert flips.keys() == set(PLACES[kind[1] == 3])
        for steps, message in flips.values():
            assert steps <= INTERVAL
            assert "rank 1 on" in message
        if kind[1]:
            assert "rank 0 on" not in flips["owned"][1], "it knows what its last update left"
        else:
            assert "rank 0 on" in flips["model"][1], "of two, none has a majority"


def test_who_is_at_fault():
    assert find_suspects([(7, False)] * 3) == []
    assert find_suspects([(7, False), (7, False), (8, False)]) == [2]
    assert find_suspects([(7, False), (8, False)]) == [0, 1]
    assert find_suspects([(7, False), (8, True)]) == [1]
    assert find_suspects([(7, False), (7, True), (7, False)]) == [1]
    assert find_suspects([(1, False), (2, False), (3, False), (3, False)]) == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_flipped_bit_changes_the_checksum(dtype):
    tensors = [torch.randn(5, 7).to(dtype), torch.randn(3).to(dtype)]
    before = int(checksum(tensors))
    for bit in range(8 * dtype.itemsize - 1):
        flip(tensors[1], 2, bit)
        assert int(checksum(tensors)) != before
        flip(tensors[1], 2, bit)
    assert int(checksum(tensors)) == before


def note_all(guard, norms, first=1):
    return [guard.note(norm, first + i, 0, (10 * i, 10 * i + 10)) for i, norm in enumerate(norms)]


def test_the_spike_guard_takes_what_is_below_ten_medians():
    guard = SpikeGuard(SafetySettings(), {})
    assert guard.limit == math.inf
    assert note_all(guard, [2.0] * 15 + [50.0]) == [True] * 16, "too few norms are known"
    assert guard.limit == 20.0
    taken = note_all(guard, [19.9, 20.0, math.nan, 3.0, math.inf], first=17)
    assert taken == [True, False, False, True, False]
    assert (guard.num_skipped, guard.streak.length, guard.has_enough) == (3, 1, False)
    unlimited = SpikeGuard(SafetySettings(spike_factor=0), {})
    assert note_all(unlimited, [1.0] * 20 + [1e9, math.inf])[-2:] == [True, False]


def test_the_spike_guard_continues_from_a_checkpoint():
    guard = SpikeGuard(SafetySettings(), {})
    note_all(guard, [float(i) for i in range(1, 79)])
    again = SpikeGuard(SafetySettings(), json.loads(json.dumps(guard.to_dict())))
    for each in (guard, again):
        assert each.limit == 465.0, "ten medians of 15 to 78"
        note_all(each, [math.nan] * 4, first=79)
        assert not each.has_enough
        each.note(math.nan, 83, 0, (40, 50))
        assert each.has_enough
        assert (each.streak.first_step, each.streak.start, each.streak.stop) == (79, 0, 50)
    assert guard.to_dict() == again.to_dict()
    back = guard.went_back(SpikeGuard(SafetySettings(), {}))
    assert (back.skipped(0), back.skipped(1)) == ([(0, 50)], [])
    assert (back.num_rollbacks, back.num_skipped) == (1, 5)


def test_who_hangs():
    peers = [Peer(rank, f"node{rank}", 100 + rank, ("", 0)) for rank in range(3)]
    here, before = {"beats": 5, "place": "step 4"}, {"beats": 4, "place": "validation"}
    for answers, said in (
        ([here, None, here], "No answer from rank 1 on node1 (process 101)"),
        ([here, here, before], "behind the others is rank 2 on node2 (at validation)"),
        ([here] * 3, "from the same place (step 4)"),
    ):
        assert said in describe_hang(peers, answers)


def test_the_watchdog_listens_where_the_ranks_are_only(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    gathered = []
    alone = SimpleNamespace(rank=0, gather=lambda mine: gathered.append(mine) or [mine])
    watchdog = Watchdog(60.0, tmp_path, alone)
    assert watchdog._listener.getsockname()[0] == "127.0.0.1"
    with socket.create_connection(gathered[0].address, timeout=5) as connection:
        assert json.loads(connection.recv(100)) == {"beats": 1, "place": "start"}
    watchdog.close()


@pytest.mark.parametrize(("pauses", "is_ended"), [([1.0, 3600.0, 1.0], False), ([1.0] * 70, True)])
def test_time_in_which_the_process_was_stopped_does_not_count(
    tmp_path, monkeypatch, pauses, is_ended
):
    """An hour between two looks at the clock is a stopped process; 70 looks are a hang."""
    clock = Clock(pauses)
    ended = []
    monkeypatch.setattr("trainer.guards.watchdog.time", clock)
    monkeypatch.setattr("trainer.guards.watchdog.os._exit", ended.append)
    watchdog = Watchdog(0.0, tmp_path, SimpleNamespace(rank=0))
    watchdog._limit, watchdog._peers, watchdog._closed = 60.0, [], clock
    monkeypatch.setattr(watchdog, "_report", lambda: None)
    watchdog.beat("step 2")
    watchdog._watch()
    assert ended == [HUNG] * is_ended


class Clock:
    """A clock, and an event to wait for, which comes once all pauses have passed."""

    def __init__(self, pauses):
        self._pauses = iter(pauses)
        self._now = 0.0

    def monotonic(self):
        return self._now

    def wait(self, _):
        pause = next(self._pauses, None)
        self._now += pause or 0.0
        return pause is None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
