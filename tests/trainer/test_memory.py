"""What a rank holds in memory: copies for checkpoints, buckets, and what the plan counts.

Run as a program, this file is one rank of a run of three steps, and prints the most bytes of
tensors that it has had.
"""

import itertools
import sys

import numpy as np
import pytest
from torch.distributed import Work
from torch.profiler import ProfilerActivity, profile

from pipeline.command_line.program import parse_settings
from pipeline.shards.block import Block
from tests.datasets import CLS, MASK, SEP, write_dataset
from tests.trainer.tiny_run import write_config
from tests.trainer.two_ranks import run_ranks
from trainer.cli import COMMANDS
from trainer.engine.zero import bucket_sizes
from trainer.model.bert import build_model
from trainer.model.config import preset
from trainer.preflight.memory import Case, _reduction, activation_bytes, count_memory
from trainer.preflight.plan import memory_case, plan_phases
from trainer.pretrain.loop import pretrain
from trainer.process.ranks import _let_gloo_rest
from trainer.stream.order.source import open_mixture

SEQ_LEN, VOCAB_SIZE = 128, 30_522


def test_buckets_of_a_model_leave_frozen_weights_out():
    model = build_model(preset("tiny", vocab_size=50, num_layers=1, hidden_size=8, num_heads=1), 0)
    sizes = bucket_sizes(model)
    assert sizes == {"reduce_bucket_size": sizes["allgather_bucket_size"], **sizes}
    model.bert.embeddings.position.requires_grad_(False)
    assert sizes["reduce_bucket_size"] - bucket_sizes(model)["reduce_bucket_size"] == 512 * 8


def count_peak(config_file):
    """Most bytes that a run has had of torch's CPU allocator at once, whoever else is at work.

    The profiler does not see what Gloo's threads free, so they let go of every tensor before this
    thread does.
    """
    settings = parse_settings("pretrain", COMMANDS["pretrain"], ["--config", config_file])
    wait = Work.wait

    def wait_for_rest(work, *arguments):
        result = wait(work, *arguments)
        _let_gloo_rest()
        return result

    Work.wait = wait_for_rest
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        pretrain(settings)
    events = profiler.profiler.kineto_results.events()
    of_memory = (each for each in events if each.name() == "[memory]")
    changes = sorted((each.start_ns(), each.nbytes()) for each in of_memory)
    return max(itertools.accumulate(nbytes for _, nbytes in changes))


def full_block(seed, size=32):
    """Instances of SEQ_LEN tokens, 15 % of them masked: what the plan assumes without a dataset."""
    rng, middle, num_masked = np.random.default_rng(seed), SEQ_LEN // 2, round(0.15 * SEQ_LEN)
    ids_BS = rng.integers(5, VOCAB_SIZE, (size, SEQ_LEN)).astype(np.uint16)
    ids_BS[:, 0], ids_BS[:, [middle, -1]] = CLS, SEP
    positions_M = np.arange(1, 1 + 3 * num_masked, 3)
    positions_M = positions_M[positions_M != middle]
    labels_BM = ids_BS[:, positions_M].copy()
    ids_BS[:, positions_M] = MASK
    return Block(
        input_ids=ids_BS.ravel(),
        offsets=np.arange(0, size * SEQ_LEN + 1, SEQ_LEN, dtype=np.int32),
        segment_a_length=np.full(size, middle + 1, np.uint16),
        masked_lm_positions=np.tile(positions_M, size).astype(np.uint16),
        masked_lm_ids=labels_BM.ravel(),
        masked_offsets=np.arange(0, size * len(positions_M) + 1, len(positions_M), dtype=np.int32),
        is_random_next=rng.integers(0, 2, size).astype(bool),
        document_a=np.arange(size, dtype=np.uint64),
        document_b=np.arange(size, dtype=np.uint64),
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    shards = {(split, SEQ_LEN, 0, 0): [full_block(0)] for split in ("train", "validation")}
    folder = tmp_path_factory.mktemp("memory")
    return write_dataset(folder, shards, VOCAB_SIZE, {"lower_case": True})


@pytest.mark.engines
@pytest.mark.parametrize(
    ("ranks", "zero_stage", "optimizer", "micro_tokens", "fullest"),
    [(1, 0, "adamw", 1_024, "loss"), (2, 2, "lamb", 256, "end of the backward pass")],
)
def test_the_plan_counts_what_is_allocated(
    data, tmp_path, ranks, zero_stage, optimizer, micro_tokens, fullest
):
    batch = ranks * 2 * micro_tokens // SEQ_LEN
    settings = {
        "model": {"preset": "tiny"},
        "optimizer": {"name": optimizer},
        "phases": [{"seq_len": SEQ_LEN, "global_batch": batch, "steps": 3, "peak_lr": 1e-4}],
        "micro_tokens": micro_tokens,
        "zero_stage": zero_stage,
        "checkpoint": {"interval": 0, "keep": 1},  # a copy written meanwhile goes at any time
        "validation": {"interval": 2, "num_instances": 8},
    }
    _, *words = write_config(tmp_path / "run", data, **settings)
    finished = run_ranks([__file__, words[1]], ranks)
    assert not any(each.returncode for each in finished), finished[0].stderr
    counted = int(finished[0].stdout.split()[-1])
    words += ["--world_size", str(ranks), "--gpu", "cpu", "--peak_tflops", "0.05"]
    asked = parse_settings("plan", COMMANDS["plan"], words)
    config = asked.model_config(VOCAB_SIZE)
    phases = plan_phases(asked, config, open_mixture(asked.data))
    planned = count_memory(memory_case(asked, config, phases, zero_stage))
    assert planned.fullest == fullest
    assert planned.total == pytest.approx(counted, rel=0.05)


def test_the_size_of_buckets_of_the_deepspeed_file_counts():
    """P is 336,226,108 and the embedding has 31,254,528 elements."""
    config = preset("large", vocab_size=30_522)

    def reduction(zero_stage, bucket_size):
        case = Case(config, 8, zero_stage, micro_batches=1, bucket_size=bucket_size)
        return _reduction(case)["reduction"]["buckets"]

    assert reduction(1, None) == reduction(1, 1_000) == 4 * 31_254_528  # a bucket of its own
    assert reduction(1, 10**8) == 4 * 10**8
    assert reduction(1, 5 * 10**8) == 4 * 336_226_108
    assert reduction(3, None) == 2 * 4 * 2**25
    # DeepSpeed reserves the whole bucket, and copies what is in it.
    assert reduction(3, 5 * 10**8) == 4 * 5 * 10**8 + 4 * 336_226_108
    assert reduction(3, 1_000) == 4 * 1_000 + 4 * 31_254_528


def test_terms_of_bert_large_on_eight_gpus():
    """P is 336,226,108: bf16 weights of all, an eighth of the others."""
    config = preset("large", vocab_size=30_522)
    first = count_memory(Case(config, 8, 1, precision="bf16", micro_tokens=16_384))
    assert first.held == {
        "weights": 672_452_216, "fp32 weights": 168_113_054, "moments": 336_226_108,
    }  # fmt: skip
    second = count_memory(Case(config, 8, 2, precision="bf16", micro_tokens=128))
    assert second.held == first.held
    assert second.fullest == "end of the backward pass"
    gradient_of_embedding = 3 * 2 * 30_522 * 1_024
    assert second.in_step == {
        "gradients": 1_344_904_432, "gradient of the embedding": gradient_of_embedding,
    }  # fmt: skip


def test_one_micro_batch_leaves_a_rank_few_gradients():
    """Those it updates, the bucket of the embedding and two that are on their way."""
    config = preset("large", vocab_size=30_522)
    case = Case(config, 8, 1, precision="bf16", micro_tokens=128, micro_batches=1)
    memory = count_memory(case)
    assert memory.fullest == "end of the backward pass"
    assert memory.in_step["gradients"] == 168_113_054 + 4 * (30_522 * 1_024 + 2 * 2**24)


@pytest.mark.parametrize(
    ("precision", "is_compiled", "a_logit"),
    [("bf16", False, 12), ("bf16", True, 4), ("fp32", False, 12), ("fp32", True, 8)],
)
def test_a_compiled_loss_copies_no_logits_to_fp32(precision, is_compiled, a_logit):
    config = preset("base", vocab_size=30_000)
    case = Case(config, 1, 1, precision=precision, micro_tokens=10_000, is_compiled=is_compiled)
    assert count_memory(case).in_step["logits"] == a_logit * 30_000 * 1_500


def test_activations_depend_on_where_attention_runs():
    """34 bytes on a GPU (Korthikanti et al. 2022, 4.1); plain torch keeps attention's matrix."""
    config = preset("large", vocab_size=30_522)
    units = 24 * 1_024 * 1_000
    gpu = Case(config, 1, 1, precision="bf16", micro_tokens=1_000)
    assert activation_bytes(gpu) == 34 * units + 4 * 2 * 1_024 * 1_000
    for seq_len in (128, 512):
        cpu = Case(config, 1, 1, micro_tokens=1_000, seq_len=seq_len, is_cpu=True)
        a_unit = 4 * (21 + 3 * 16 * seq_len / 1_024)
        assert activation_bytes(cpu) == a_unit * units + 4 * 4 * 1_024 * 1_000


if __name__ == "__main__":
    print(count_peak(sys.argv[1]))
