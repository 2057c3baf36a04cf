from dataclasses import replace

import pytest
import torch

from trainer.engine.deepspeed_config import BUCKET_ELEMENTS
from trainer.engine.gradients import cut_buckets
from trainer.engine.muon_costs import MuonCosts, count_muon_costs
from trainer.model.bert import BertForPreTraining
from trainer.model.config import BertConfig, Lengths, ModelSettings, num_parameters, preset
from trainer.optim.settings import OptimizerSettings
from trainer.preflight.communication import (
    StepTime,
    Traffic,
    Wire,
    add_exchanges,
    count_traffic,
    join_ranks,
    parse_link,
    time_step,
)
from trainer.preflight.plan import describe_plan, find_used_batch, time_phase_step, traffic_of
from trainer.preflight.settings import PlanSettings
from trainer.process.gpus import GPUS
from trainer.settings import Phase

CONFIG = preset("large")
SIZE = num_parameters(CONFIG)
FULL = Lengths(128, 128**2, 19.2)


def settings_of(**changes):
    phases = [Phase(seq_len=128, global_batch=256, steps=900_000, peak_lr=1e-4)]
    chosen = {"phases": phases, "model": ModelSettings("large"), "precision": "bf16"}
    return PlanSettings(**{**chosen, "world_size": 64, "micro_tokens": 32_768, **changes})


@pytest.mark.parametrize(
    ("text", "node_size", "gigabytes"),
    [
        ("ndr", 8, 400), ("ndr", 4, 200), ("400gbe", 8, 50), ("100gbe", 8, 12.5),
        ("4x100gbe", 8, 50), ("2x25gbit", 8, 6.25), ("25gbit", 8, 3.125), ("100mbit", 1, 0.0125),
        ("2.5gbit", 1, 0.3125),
    ],
)  # fmt: skip
def test_what_a_node_can_send(text, node_size, gigabytes):
    assert parse_link(text).node_bytes(node_size) == pytest.approx(gigabytes * 1e9)


def test_nvlink_is_no_link_between_nodes():
    assert parse_link("nvlink") is None


@pytest.mark.parametrize(
    "text", ["hdr", "0gbit", "gbit", "100", "0x100gbe", "4xnvlink", "-1gbit", ""]
)
def test_an_unknown_link_is_refused_with_the_list(text):
    with pytest.raises(ValueError, match=r"link is '.*'; give one of nvlink, ndr, 400gbe, 100gbe,"):
        parse_link(text)


@pytest.mark.parametrize(
    ("link", "gpu", "ranks", "node_size", "gigabytes", "trip_microseconds"),
    [
        # 8.4 to start, 3.4 for a hop of NVLink, 5.7 of PCIe, 9.6 between nodes.
        ("ndr", "h200", 8, 8, 0.9 * 450, 8.4 + 7 * 3.4),
        ("ndr", "h200", 64, 8, 0.9 * 400, 8.4 + 56 * 3.4 + 7 * 9.6),
        ("100gbe", "h200", 64, 8, 0.9 * 12.5, 8.4 + 56 * 3.4 + 7 * 9.6),
        ("nvlink", "b200", 64, 8, 0.9 * 900, 8.4 + 63 * 3.4),
        ("ndr", "l4", 16, 8, 0.9 * 32, 8.4 + 14 * 5.7 + 9.6),  # PCIe is the slower of the two
        ("400gbe", "l4", 2, 1, 0.9 * 50, 8.4 + 9.6),
        ("100mbit", "cpu", 2, 1, 0.9 * 0.0125, 8.4 + 9.6),
    ],
)
def test_the_slower_link_decides(link, gpu, ranks, node_size, gigabytes, trip_microseconds):
    wire = join_ranks(link, gpu, GPUS[gpu], ranks, node_size)
    assert wire.bytes_per_second == pytest.approx(gigabytes * 1e9)
    assert wire.trip_seconds == pytest.approx(trip_microseconds * 1e-6)


def test_processes_of_one_cpu_are_not_timed():
    wire = join_ranks("ndr", "cpu", GPUS["cpu"], 2, 8)
    assert time_step(Traffic(8e9, 2e9, 2, 1, 1.0, overlaps=False), wire, 1.0, 1).seconds == 1.0
    assert wire.description == "within a node memory, whose time is not counted"


@pytest.mark.parametrize(
    ("stage", "precision", "micro_batches", "gradients", "weights"),
    [
        (0, "fp32", 1, 8, 0), (0, "fp32", 3, 8, 0),
        (1, "fp32", 3, 4, 4), (1, "bf16", 1, 4, 2), (1, "bf16", 3, 4, 2),
        (2, "bf16", 1, 4, 2), (2, "bf16", 3, 4, 2), (2, "fp32", 3, 4, 4),
        (3, "bf16", 1, 4, 4), (3, "bf16", 3, 12, 12),
    ],
)  # fmt: skip
def test_bytes_of_a_parameter(stage, precision, micro_batches, gradients, weights):
    traffic = count_traffic(CONFIG, stage, precision, 4, micro_batches)
    assert traffic.gradient_bytes == gradients * SIZE * 3 / 4
    assert traffic.weight_bytes == weights * SIZE * 3 / 4
    assert traffic.total_bytes == (gradients + weights) * SIZE * 3 / 4


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_gradients_overlap_in_several_buckets(stage):
    traffic = count_traffic(CONFIG, stage, "fp32", 4, 2)
    assert traffic.overlaps
    assert traffic.last_share < 1


@pytest.mark.parametrize(("precision", "value"), [("fp32", 4), ("bf16", 2)])
def test_muon_also_exchanges_split_matrices(precision, value):
    costs = MuonCosts(flops=0, sent=5, passing=7)
    plain = count_traffic(CONFIG, 1, "bf16", 4, 2)
    traffic = add_exchanges(plain, costs, precision)
    assert traffic.total_bytes == plain.total_bytes + 5 * value
    assert traffic.passing_bytes == 7 * value
    assert add_exchanges(plain, MuonCosts(flops=9), precision) == plain


def test_exchanges_and_updates_hide_behind_nothing():
    # 3 GB at 1 GB/s in two exchanges that take 0.1 s to start.
    wire = Wire(2, 2, 1e9, 0.1, "")
    traffic = Traffic(0.0, 0.0, 0, 0, 0.25, overlaps=True, exchanged_bytes=2e9, passing_bytes=3e9)
    step = time_step(traffic, wire, 30.0, 1, updating=5.0)
    assert (step.computing, step.wire, step.hidden) == (35.0, pytest.approx(3.2), 0.0)
    assert time_step(replace(traffic, passing_bytes=0.0), wire, 30.0, 1).seconds == 30.0


@pytest.mark.parametrize(("ranks", "teraflops"), [(1, 7.731), (2, 3.865), (8, 1.095), (64, 0.1933)])
def test_ranks_share_the_matrices_of_bert_large(ranks, teraflops):
    """Most of them are split. Each is orthogonalised once, and work is nearly even."""
    costs = count_muon_costs(CONFIG, 1, ranks, BUCKET_ELEMENTS, node_size=8)
    assert costs.flops / 1e12 == pytest.approx(teraflops, rel=1e-3)
    assert costs.flops < 1.61 * 7.731e12 / ranks
    # A rank sends at most its own part, and the updates of its matrices.
    assert costs.sent < 2.5 * SIZE / ranks
    assert costs.exchanged < 5 * SIZE / ranks


def test_exchanges_of_two_ranks_worked_by_hand():
    """Rank 0 holds query, key and value, rank 1 both matrices of 24 by 40, which cost less.

    So rank 1 gets the matrix of 24 by 24 of which it holds 302 elements, and rank 0 holds 274.
    """
    config = BertConfig(50, 24, 1, 3, 40, 16)
    square = 5 * 3 * 2 * 24**3
    oblong = 5 * (2 * 2 * 24 * 24 * 40 + 2 * 24**3)
    found = count_muon_costs(config, 1, 2, 10**9)
    assert found.flops == 2 * oblong + square
    assert (found.sent, found.passing, found.exchanged) == (274, 2 * 274, 302 + 2 * 576)
    assert count_muon_costs(config, 1, 2, 10**9, node_size=2).passing == 2 * 274
    assert count_muon_costs(config, 0, 2, 10**9) == MuonCosts(2 * oblong + 4 * square)


def test_the_plan_of_muon_counts_its_work_and_its_exchanges():
    phase = settings_of().phases[0]
    seconds = {}
    for optimizer in ("adamw", "muon"):
        settings = settings_of(optimizer=OptimizerSettings(name=optimizer), link="100gbe")
        seconds[optimizer] = time_phase_step(phase, CONFIG, FULL, settings)
    costs = count_muon_costs(CONFIG, 1, 64, BUCKET_ELEMENTS, node_size=8)
    updating = costs.flops / (67e12 * 0.4)  # fp32 on an H200
    assert seconds["muon"].computing - seconds["adamw"].computing == pytest.approx(updating)
    exchanging = 4 * costs.passing / (0.9 * 12.5e9)
    assert seconds["muon"].wire - seconds["adamw"].wire == pytest.approx(exchanging, rel=0.05)
    assert seconds["muon"].hidden == seconds["adamw"].hidden > 0
    half = OptimizerSettings(name="muon", muon_precision="bf16")
    faster = time_phase_step(phase, CONFIG, FULL, settings_of(optimizer=half, link="100gbe"))
    assert faster.seconds < seconds["muon"].seconds
    [said] = [
        line
        for line in describe_plan(settings_of(optimizer=half))
        if line.startswith("  sent by a rank")
    ]
    assert "4 bytes a parameter of gradients and 2 of weights and at most 0.0" in said
    assert "of split matrices, times 63/64, gradients while" in said


@pytest.mark.parametrize(
    ("stage", "gradients", "weights"), [(0, 8, 0), (1, 8, 2), (2, 8, 2), (3, 24, 12)]
)
def test_gloo_makes_an_all_reduce_of_every_reduce_scatter(stage, gradients, weights):
    traffic = count_traffic(CONFIG, stage, "bf16", 4, 3, by_gloo=True)
    assert traffic.gradient_bytes == gradients * SIZE * 3 / 4
    assert traffic.weight_bytes == weights * SIZE * 3 / 4


@pytest.mark.parametrize(("name", "share"), [("base", 0.213), ("large", 0.093)])
def test_the_word_embedding_is_sent_last(name, share):
    """Its bucket is larger than the others."""
    config = preset(name)
    with torch.device("meta"):
        parameters = list(BertForPreTraining(config).parameters())
    last = sum(parameter.numel() for parameter in cut_buckets(parameters, BUCKET_ELEMENTS)[-1])
    traffic = count_traffic(config, 1, "bf16", 8, 1)
    assert traffic.last_share == pytest.approx(last / num_parameters(config))
    assert traffic.last_share == pytest.approx(share, abs=5e-4)


def test_zero_3_overlaps_nothing_that_is_counted():
    assert not count_traffic(CONFIG, 3, "bf16", 4, 2).overlaps


def test_a_single_rank_sends_nothing():
    assert count_traffic(CONFIG, 1, "bf16", 1, 1).total_bytes == 0
    wire = join_ranks("ndr", "h200", GPUS["h200"], 1, 8)
    assert time_step(count_traffic(CONFIG, 1, "bf16", 1, 1), wire, 2.0, 1) == StepTime(2.0)


def test_weights_hide_behind_the_first_forward_pass():
    # 4 GB at 1 GB/s and 4 trips of 0.1 s; nothing else is sent.
    wire = Wire(2, 2, 1e9, 0.1, "")
    traffic = Traffic(0.0, 4e9, 0, 4, 0.25, overlaps=True)
    assert time_step(replace(traffic, overlaps=False), wire, 3.0, 1).hidden == 0.0
    # A third of 3 s is a forward pass.
    assert time_step(traffic, wire, 3.0, 1).hidden == pytest.approx(1.0)
    assert time_step(traffic, wire, 3.0, 1).seconds == pytest.approx(6.4)
    # Of three micro-batches only the first one hides anything.
    assert time_step(traffic, wire, 3.0, 3).hidden == pytest.approx(1 / 3)
    # If layers are computed again, the forward pass is a quarter.
    assert time_step(traffic, wire, 3.0, 1, recomputes=True).hidden == pytest.approx(0.75)
    # The first of four buckets, 1.1 s, has nothing to hide behind.
    assert time_step(traffic, wire, 30.0, 1).hidden == pytest.approx(3.3)


def test_the_size_of_buckets_can_be_chosen():
    traffic = count_traffic(CONFIG, 1, "fp32", 2, 1, bucket_size=SIZE)
    assert not traffic.overlaps
    assert (traffic.gradient_trips, traffic.weight_trips, traffic.last_share) == (1, 1, 1)
    with torch.device("meta"):
        parameters = list(BertForPreTraining(CONFIG).parameters())
    for bucket in (SIZE // 4, 1_000):
        buckets = cut_buckets(parameters, bucket)
        several = count_traffic(CONFIG, 1, "fp32", 2, 1, bucket_size=bucket)
        assert several.overlaps
        assert (several.gradient_trips, several.weight_trips) == (len(buckets), len(buckets))
        last = sum(parameter.numel() for parameter in buckets[-1])
        assert several.last_share == last / SIZE


@pytest.mark.parametrize(("stage", "trips"), [(0, (2, 0)), (1, (1, 1)), (3, (1, 22))])
def test_the_plan_counts_the_buckets_of_the_deepspeed_file(tmp_path, stage, trips):
    """Under ZeRO-3 the size is that of gradients only, and weights are gathered twice."""
    file = tmp_path / "ds_config.json"
    file.write_text('{"zero_optimization": {"reduce_bucket_size": 5e8}}')
    precision = "fp32" if stage == 0 else "bf16"
    settings = settings_of(zero_stage=stage, precision=precision, deepspeed=str(file))
    traffic = traffic_of(settings, CONFIG, 1)
    assert (traffic.gradient_trips, traffic.weight_trips) == trips
    assert traffic_of(replace(settings, deepspeed=None), CONFIG, 1).gradient_trips > trips[0]
    muon = replace(settings, optimizer=OptimizerSettings(name="muon"), deepspeed=str(file))
    if stage == 1:
        costs = count_muon_costs(CONFIG, 1, 64, 5 * 10**8, node_size=8)
        assert traffic_of(muon, CONFIG, 1).exchanged_bytes == 4 * costs.sent


def test_gradients_hide_behind_the_last_backward_pass():
    # 4 GB at 1 GB/s; 4 trips of 0.1 s carry 4 buckets of gradients. Nothing else is sent.
    wire = Wire(2, 2, 1e9, 0.1, "")
    traffic = Traffic(4e9, 0.0, 4, 0, 0.25, overlaps=True)
    shown = time_step(replace(traffic, overlaps=False), wire, 3.0, 1)
    assert (shown.wire, shown.hidden, shown.seconds) == (
        pytest.approx(4.4),
        0.0,
        pytest.approx(7.4),
    )
    # Two thirds of 3 s are a backward pass.
    hidden = time_step(traffic, wire, 3.0, 1)
    assert (hidden.wire, hidden.hidden) == (pytest.approx(4.4), pytest.approx(2.0))
    assert hidden.seconds == pytest.approx(5.4)
    assert hidden.waiting_share == pytest.approx(2.4 / 5.4)
    # Of three micro-batches only the last one hides anything.
    assert time_step(traffic, wire, 3.0, 3).hidden == pytest.approx(2 / 3)
    assert time_step(traffic, wire, 3.0, 1, recomputes=True).hidden == pytest.approx(2.25)
    # The last of four buckets, 1.1 s, has nothing to hide behind.
    assert time_step(traffic, wire, 30.0, 1).hidden == pytest.approx(3.3)


def test_gradients_and_weights_hide_behind_one_pass_each():
    wire = Wire(2, 2, 1e9, 0.1, "")
    both = time_step(Traffic(4e9, 2e9, 4, 2, 0.25, overlaps=True), wire, 3.0, 1)
    assert (both.wire, both.hidden) == (pytest.approx(6.6), pytest.approx(3.0))


def test_hours_stop_falling_where_the_wire_is_the_limit():
    phase = settings_of().phases[0]
    seconds = {}
    for ranks in (1, 8, 64):
        step = time_phase_step(phase, CONFIG, FULL, settings_of(world_size=ranks, link="100gbe"))
        seconds[ranks] = step.seconds
    assert 5 < seconds[1] / seconds[8] < 8
    assert seconds[64] > seconds[8]


@pytest.mark.parametrize("changes", [{}, {"link": "100gbe"}, {"world_size": 2, "gpu": "l4"}])
def test_the_batch_that_uses_the_gpus_is_the_smallest(changes):
    settings = settings_of(**changes)
    [phase] = settings.phases
    found = find_used_batch(phase, CONFIG, FULL, settings)
    shares = [
        time_phase_step(replace(phase, global_batch=batch), CONFIG, FULL, settings).waiting_share
        for batch in (found, found - settings.world_size)
        if batch
    ]
    assert found % settings.world_size == 0
    assert shares[0] < 0.1
    assert all(share >= 0.1 for share in shares[1:])


def test_all_larger_batches_use_the_gpus_too():
    """33 instances of 512 tokens begin a third micro-batch, so that a rank waits longer again."""
    settings = settings_of(world_size=16, link="400gbe", micro_tokens=8_192)
    phase = replace(settings.phases[0], seq_len=512)
    full = Lengths(512, 512**2, 76.8)
    shares = {}
    for instances in range(32, 300):
        batch = replace(phase, global_batch=16 * instances)
        shares[instances] = time_phase_step(batch, CONFIG, full, settings).waiting_share
    assert find_used_batch(phase, CONFIG, full, settings) == 16 * 40
    assert min(shares[instances] for instances in range(33, 40)) >= 0.1
    assert shares[32] < 0.1
    assert max(shares[instances] for instances in range(40, 300)) < 0.1


def test_precisions_have_rates_of_their_own():
    phase = settings_of().phases[0]
    seconds = {
        (gpu, precision): time_phase_step(
            phase, CONFIG, FULL, settings_of(world_size=1, gpu=gpu, precision=precision)
        ).seconds
        for gpu in ("h200", "l4")
        for precision in ("bf16", "fp32")
    }
    assert seconds["h200", "fp32"] / seconds["h200", "bf16"] == pytest.approx(989 / 67)
    assert seconds["l4", "bf16"] / seconds["h200", "bf16"] == pytest.approx(989 / 121)
    assert seconds["l4", "fp32"] / seconds["l4", "bf16"] == pytest.approx(121 / 30.3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"link": "hdr"}, "link is 'hdr'; give one of nvlink, ndr, 400gbe, 100gbe"),
        ({"world_size": 12}, "12 ranks do not fill nodes of 8; give a multiple of 8, or"),
        ({"node_size": 0}, "node_size is 0; it must be at least 1"),
        ({"compare": [8, 12]}, "12 ranks do not fill nodes of 8"),
        ({"compare": [0]}, "compare has 0; numbers of ranks are at least 1"),
        ({"compare": [512]}, r"phases\.0\.global_batch is 256 for 512 ranks"),
        ({"world_size": 512}, r"phases\.0\.global_batch is 256 for 512 ranks"),
        ({"gpu": "l4", "link": "nvlink"}, "link is nvlink, but l4 has PCIe 4"),
        ({"gpu": "v100"}, "v100 has no bf16; give --precision fp32"),
    ],
)
def test_what_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        list(describe_plan(settings_of(**wrong)))
