"""CPU seconds of optimizer steps, ours and others' over the same instances: JSON lines.

    python -m scripts.bench.train_step --data DATASET [--only packing plain peer losses]

`packing`: our model over packed instances, and over the same ones filled up with [PAD], at fill
0.5. `plain`: our step (DeepSpeed without ZeRO, counts agreed on) and a plain PyTorch loop over the
same model and batches. `peer`: transformers.BertForPreTraining in a loop of its own, padded to the
longest of a batch; ours; ours without packing; ours with a head over all tokens; at the dataset's
natural fill and at 0.5. `losses`: 200 steps from the same weights over the same batches, fp32, no
dropout: the largest difference from a transformers loop.

Who is compared takes turns, so that ratios compare what ran under the same load; one thread.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from pipeline.shards.block import Block, concatenate_blocks, decode_block
from pipeline.shards.dataset import Dataset, open_dataset
from scripts.bench.measured import cpu_seconds, print_result, summarize
from scripts.checkout import make_parser
from trainer.conversion.huggingface import to_hf_config, to_hf_state
from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.train_step import begin_to_agree, forward_sums, train_step
from trainer.engine.zero import start_engine
from trainer.model.bert import BertForPreTraining, build_model
from trainer.model.config import preset
from trainer.optim.adamw import AdamW
from trainer.process.ranks import Ranks, start_ranks, stop_ranks
from trainer.stream.batches.pack import MicroBatch, pack_micro_batches, pad_micro_batch, to_device

PACKAGES = ("torch", "transformers", "deepspeed")
LEARNING_RATE = 1e-4
CPU = torch.device("cpu")


def read_instances(dataset: Dataset, seq_len: int) -> Block:
    """Returns the train instances of the first shard of the first pass."""
    [shard, *_] = dataset.shards("train", seq_len, 0)
    data = dataset.read_file(shard.name)
    table = dataset.blocks(shard)
    places = zip(table.offset.tolist(), table.size.tolist(), strict=True)
    return concatenate_blocks(
        [decode_block(data[start : start + size], shard.name) for start, size in places]
    )


def batches_of(
    block: Block, seq_len: int, size: int, count: int, fill: float | None
) -> list[MicroBatch]:
    """Returns batches of neighbouring instances, or of instances chosen by their lengths.

    Args:
        block: The instances to choose from.
        seq_len: The greatest length.
        size: The number of instances of a batch.
        count: The number of batches.
        fill: The share of `seq_len` that the mean length should be near to; None takes neighbours.

    Raises:
        ValueError: There are too few instances.
    """
    lengths = np.diff(block.offsets)
    chosen = list[int]()
    total = 0
    for index, length in enumerate(lengths.tolist()):
        before = total / max(1, len(chosen))
        after = (total + length) / (len(chosen) + 1)
        if (
            fill is None
            or not chosen
            or abs(after - fill * seq_len) <= max(abs(before - fill * seq_len), 8)
        ):
            chosen.append(index)
            total += length
        if len(chosen) == size * count:
            break
    else:
        raise ValueError(
            f"the first shard has {len(chosen)} instances of that fill, {size * count} are needed"
        )
    rows = concatenate_blocks([block.slice(index, index + 1) for index in chosen])
    return pack_micro_batches(
        rows, [(start, start + size) for start in range(0, size * count, size)]
    )


def fill_up(batch: MicroBatch, seq_len: int) -> MicroBatch:
    """Returns the same instances with padding up to seq_len, which the model computes like text."""
    rows = pad_micro_batch(batch, seq_len)
    count = len(rows["input_ids"])
    return MicroBatch(
        input_ids=rows["input_ids"].flatten(),
        cu_seqlens=torch.arange(0, (count + 1) * seq_len, seq_len, dtype=torch.int32),
        token_type_ids=rows["token_type_ids"].flatten(),
        position_ids=torch.arange(seq_len).repeat(count),
        masked_positions=(rows["labels"].flatten() >= 0).nonzero().flatten(),
        masked_labels=batch.masked_labels.long(),
        is_random_next=batch.is_random_next.long(),
        max_seqlen=seq_len,
    )


def predict_everywhere(batch: MicroBatch) -> MicroBatch:
    """Returns a batch whose head computes logits for all tokens, as that of transformers does."""
    count = len(batch.input_ids)
    every = torch.arange(count)
    return dataclasses.replace(batch, masked_positions=every, masked_labels=batch.input_ids.long())


def plain_step(
    model: BertForPreTraining, optimizer: torch.optim.Optimizer, batch: MicroBatch
) -> Tensor:
    """Makes a step of a plain loop over our model, and returns its loss."""
    sums = forward_sums(model, batch, CPU)
    loss = sums.mlm_nll / len(batch.masked_labels) + sums.nsp_nll / len(batch.is_random_next)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def transformers_step(
    model: Any, optimizer: torch.optim.Optimizer, rows: dict[str, Tensor]
) -> Tensor:
    """Makes a step of a plain loop over the model of transformers, and returns its loss."""
    loss: Tensor = model(**rows).loss
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def torch_adamw(
    model: torch.nn.Module, lr: float = LEARNING_RATE, *, fused: bool | None = None
) -> torch.optim.AdamW:
    """Returns torch's AdamW with BERT's two groups: matrices decay, other parameters do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, eps=1e-6, fused=fused)


def twin_of(model: BertForPreTraining, attention: str | None = None) -> Any:
    """Returns the BertForPreTraining of transformers with the same weights, in training mode."""
    settings = to_hf_config(model.config, 0)
    twin = transformers.BertForPreTraining(
        transformers.BertConfig(**settings, attn_implementation=attention)
    )
    weights = to_hf_state(model.state_dict(), model.config)
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"]
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
    twin.load_state_dict(weights)
    return twin.train()


class Ours:
    """Makes steps as our training loop does: with counts that ranks agree on, and DeepSpeed."""

    def __init__(self, model: BertForPreTraining, ranks: Ranks, zero_stage: int = 0) -> None:
        self._ranks = ranks
        self._optimizer = AdamW(model.named_parameters())
        self._optimizer.set_learning_rate(LEARNING_RATE)
        self._engine = start_engine(
            model.train(), self._optimizer, deepspeed_config({}, zero_stage, "fp32"), ranks
        )

    def step(self, batch: MicroBatch) -> float:
        """Makes a step and returns its loss."""
        counts = begin_to_agree(self._ranks, [batch], 0.0)()
        sums = train_step(self._engine, self._ranks, [batch], counts)
        return float(sums[0] / counts.masked + sums[1] / counts.instances)


def take_turns(steps: dict[str, Callable[[int], object]], rounds: int) -> dict[str, list[float]]:
    """Returns the CPU seconds of every kind of step in each round, the kinds taking turns.

    The first round is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(-1, rounds):
        for name, step in steps.items():
            spent = cpu_seconds(partial(step, max(0, number)))
            if number >= 0:
                seconds[name].append(spent)
    return seconds


def ratios(seconds: dict[str, list[float]], over: str, under: str) -> dict[str, Any]:
    """Returns how the CPU seconds of two kinds of steps compare, by the ratio in each round."""
    return summarize([a / b for a, b in zip(seconds[over], seconds[under], strict=True)], 3)


def histogram(batches: Sequence[MicroBatch], seq_len: int) -> dict[str, Any]:
    """Returns how long the instances are: the mean share of seq_len, and counts by eighths."""
    lengths = torch.cat([batch.cu_seqlens.diff() for batch in batches]).numpy()
    counts, _ = np.histogram(lengths, bins=8, range=(1, seq_len + 1))
    return {
        "fill": round(float(lengths.mean()) / seq_len, 3),
        "lengths_in_eighths": counts.tolist(),
    }


def compare_packing(block: Block, options: argparse.Namespace, vocab_size: int) -> None:
    """Compares packed batches with padded ones. The goal is 0.65 of the time at fill 0.5."""
    batches = batches_of(block, options.seq_len, options.batch, options.rounds, 0.5)
    padded = [fill_up(batch, options.seq_len) for batch in batches]
    model = build_model(preset(options.model, vocab_size=vocab_size), 0).train()
    optimizer = torch_adamw(model)
    seconds = take_turns(
        {
            "packed": lambda number: plain_step(model, optimizer, batches[number]),
            "padded": lambda number: plain_step(model, optimizer, padded[number]),
        },
        options.rounds,
    )
    found = {name: summarize(each, 3) for name, each in seconds.items()}
    facts = histogram(batches, options.seq_len)
    report(
        "packing",
        options,
        cpu_seconds=found,
        packed_over_padded=ratios(seconds, "packed", "padded"),
        **facts,
    )


def compare_plain(block: Block, options: argparse.Namespace, vocab_size: int, ranks: Ranks) -> None:
    """Compares our step with that of a plain loop. The goal is at most 1.05 of its time."""
    batches = batches_of(block, options.seq_len, options.batch, options.rounds, None)
    config = preset(options.model, vocab_size=vocab_size)
    plain = build_model(config, 0).train()
    optimizer = torch_adamw(plain)
    ours = Ours(build_model(config, 0), ranks)
    seconds = take_turns(
        {
            "ours": lambda number: ours.step(batches[number]),
            "plain": lambda number: plain_step(plain, optimizer, batches[number]),
        },
        options.rounds,
    )
    found = {name: summarize(each, 3) for name, each in seconds.items()}
    report("plain", options, cpu_seconds=found, ours_over_plain=ratios(seconds, "ours", "plain"))


def compare_peer(
    block: Block, options: argparse.Namespace, vocab_size: int, ranks: Ranks, fill: float | None
) -> None:
    """Compares our real tokens per second with those of transformers.

    The goal is at least 1.5 times as many at the natural fill.
    """
    batches = batches_of(block, options.seq_len, options.batch, options.rounds, fill)
    config = preset(options.model, vocab_size=vocab_size)
    twin = twin_of(build_model(config, 0))
    theirs = torch_adamw(twin)
    rows = [pad_micro_batch(batch, int(batch.max_seqlen)) for batch in batches]
    ours = Ours(build_model(config, 0), ranks)
    padded = [fill_up(batch, int(batch.max_seqlen)) for batch in batches]
    everywhere = [predict_everywhere(to_device(batch, CPU)) for batch in batches]
    seconds = take_turns(
        {
            "transformers": lambda number: transformers_step(twin, theirs, rows[number]),
            "ours": lambda number: ours.step(batches[number]),
            "ours_padded": lambda number: ours.step(padded[number]),
            "ours_head_everywhere": lambda number: ours.step(everywhere[number]),
        },
        options.rounds,
    )
    tokens = [len(batch.input_ids) for batch in batches]
    rates = {
        name: summarize([count / spent for count, spent in zip(tokens, each, strict=True)], 1)
        for name, each in seconds.items()
    }
    gains = {
        "ours_over_transformers": ratios(seconds, "transformers", "ours"),
        "gain_of_packing": ratios(seconds, "ours_padded", "ours"),
        "gain_of_masked_head": ratios(seconds, "ours_head_everywhere", "ours"),
    }
    report(
        "peer",
        options,
        real_tokens_per_cpu_second=rates,
        **gains,
        **histogram(batches, options.seq_len),
    )


def compare_losses(
    dataset: Dataset, options: argparse.Namespace, vocab_size: int, ranks: Ranks
) -> None:
    """Compares 200 losses with those of transformers' loop. The goal is a difference below 1e-3."""
    block = read_instances(dataset, 128)
    size = 8
    steps = 200
    batches = batches_of(block, 128, size, steps, None)
    config = preset("tiny", vocab_size=vocab_size, hidden_dropout=0.0, attention_dropout=0.0)
    model = build_model(config, 0)
    twin = twin_of(model)
    ours = Ours(model, ranks, zero_stage=1)
    theirs = torch_adamw(twin)
    pairs = [
        (ours.step(batch), float(transformers_step(twin, theirs, pad_micro_batch(batch, 128))))
        for batch in batches
    ]
    differences = [abs(one - other) for one, other in pairs]
    ends = {"first_loss": pairs[0], "last_loss": pairs[-1]}
    report("losses", options, steps=steps, largest_difference=max(differences), **ends)


def report(comparison: str, options: argparse.Namespace, **found: Any) -> None:
    """Prints a result as one line."""
    config = {
        "model": options.model,
        "seq_len": options.seq_len,
        "batch": options.batch,
        "comparison": comparison,
    }
    print_result("train_step", config, PACKAGES, **found)
    sys.stdout.flush()


def comparisons(
    options: argparse.Namespace, ranks: Ranks
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields the comparisons: the name of each, and a function that makes it."""
    dataset = open_dataset(options.data)
    vocab_size = dataset.manifest.vocab_size
    block = read_instances(dataset, options.seq_len)
    yield "packing", lambda: compare_packing(block, options, vocab_size)
    yield "plain", lambda: compare_plain(block, options, vocab_size, ranks)
    yield "peer", lambda: compare_peer(block, options, vocab_size, ranks, None)
    yield "peer", lambda: compare_peer(block, options, vocab_size, ranks, 0.5)
    yield "losses", lambda: compare_losses(dataset, options, vocab_size, ranks)


def main() -> None:
    """Makes the comparisons that the command line names."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="dataset with lengths 128 and --seq_len")
    parser.add_argument("--seq_len", type=int, default=512)
    parser.add_argument("--model", default="small")
    parser.add_argument("--batch", type=int, default=8, help="instances of a step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=("packing", "plain", "peer", "losses"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    ranks = start_ranks()
    try:
        for name, compare in comparisons(options, ranks):
            if not options.only or name in options.only:
                compare()
    finally:
        stop_ranks()


if __name__ == "__main__":
    main()
