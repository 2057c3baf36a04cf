"""Times that a plan promises, every part by hand; its launches are counted in test_gpu_readiness.py."""

import pytest

from trainer.preflight.step_time import Assumed, Work, step_time
from trainer.process.gpus import Gpu

GPU = Gpu(tflops=100, memory_gb=80, memory_tb_s=2.0, link_gb_s=100)
ASSUMED = Assumed(
    mfu_share=0.5, launch_seconds=5e-6, hop_seconds=20e-6, link_share=0.5, network_gb_s=10, memory_share=0.5,
    once_seconds=2e-3,
)  # fmt: skip
ALONE = Work(
    flops=4e12, micro_batches=2, num_layers=10, num_parameters=100_000_000, ranks=1, mfu=0.4
)


def work(**changes):
    return Work(**{**vars(ALONE), **changes})


def test_one_gpu():
    found = step_time(ALONE, GPU, ASSUMED)
    assert found.mathematics == pytest.approx(4e12 / (100e12 * 0.4 * 0.5))  # 0.2 s
    assert found.launches == pytest.approx(2 * (80 * 10 + 108) * 5e-6)  # 9.08 ms
    assert found.optimizer == pytest.approx(36e8 / 1e12)  # 3.6 ms
    assert (found.exchange, found.once) == (0.0, 2e-3)
    assert found.total == pytest.approx(0.2 + 0.0036 + 0.002)
    assert found.idle_share == pytest.approx(0.0056 / 0.2056)


def test_launches_are_the_floor_of_a_small_step():
    found = step_time(work(flops=4e9), GPU, ASSUMED)
    assert found.mathematics == pytest.approx(0.0002)
    assert found.total == pytest.approx(0.00908 + 0.0036 + 0.002)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        # 3 buckets and 3 more collectives, 1 + log2 4 hops each; rings of 3/4 of 1e8 elements,
        # 8 bytes for a gradient and 2 for a weight, at 50 GB/s.
        ({"zero_stage": 1, "ranks": 4}, 6 * 20e-6 * 3 + 0.75e8 * (8 + 2) / 50e9),
        ({"zero_stage": 0, "ranks": 4, "value_bytes": 4}, 6 * 20e-6 * 3 + 0.75e8 * 8 / 50e9),
        (
            {"zero_stage": 2, "ranks": 4},
            9 * 20e-6 * 3 + 0.75e8 * (16 + 2) / 50e9,
        ),  # both micro-batches reduce
        ({"zero_stage": 1, "ranks": 16}, 6 * 20e-6 * 5 + 15 / 16 * 1e8 * 10 / 10e9),  # two nodes
    ],
)
def test_exchange_between_ranks(changes, seconds):
    assert step_time(work(**changes), GPU, ASSUMED).exchange == pytest.approx(seconds)


def test_choices_change_their_part():
    assert step_time(work(is_compiled=True), GPU, ASSUMED).launches == pytest.approx(0.6 * 0.00908)
    again = step_time(work(recomputes=True), GPU, ASSUMED)
    assert again.mathematics == pytest.approx(0.2 * 4 / 3)
    assert again.launches == pytest.approx(2 * (80 * 10 * 4 / 3 + 108) * 5e-6)
    assert step_time(work(optimizer="lamb"), GPU, ASSUMED).optimizer == pytest.approx(65e8 / 1e12)
    assert step_time(work(ranks=8), GPU, ASSUMED).optimizer == pytest.approx(36e8 / 8 / 1e12)
