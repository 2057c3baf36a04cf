"""A run of 100 steps beside a plain loop over transformers' model: the same losses."""

import pytest
import torch
import transformers

from pipeline.shards.dataset import open_dataset
from tests.trainer.step_loader import load_steps
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import OURS, TINY, WITHOUT_DROPOUT, launch, rows_of, write_config
from trainer.conversion.huggingface import to_hf_config, to_hf_state
from trainer.model.bert import build_model
from trainer.model.config import preset
from trainer.optim.settings import Schedule
from trainer.stream.batches.pack import pad_micro_batch

pytestmark = pytest.mark.engines

STEPS, BATCH, SEED = 100, 12, 4
SIZES = TINY | {"hidden_size": 32, "num_heads": 2, "intermediate_size": 64} | WITHOUT_DROPOUT


def our_losses(data, folder):
    phase = {"seq_len": 32, "global_batch": BATCH, "steps": STEPS}
    phase |= {"peak_lr": 1e-3, "warmup_steps": 20}
    chosen = {"micro_tokens": 96, "seed": SEED, "zero_stage": 2, "phases": [phase]}
    model = {"preset": "tiny", "overrides": SIZES}
    launch(OURS, write_config(folder / "run", data, model=model, **chosen), 2)
    return [row["loss"] for row in rows_of(folder / "run")]


def their_losses(data):
    dataset = open_dataset(str(data))
    config = preset("tiny", vocab_size=dataset.manifest.vocab_size, **SIZES)
    model = transformers.BertForPreTraining(transformers.BertConfig(**to_hf_config(config, 0)))
    weights = to_hf_state(build_model(config, SEED).state_dict(), config)
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"]
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
    model.load_state_dict(weights)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer, schedule = torch.optim.AdamW(groups, lr=0.0, eps=1e-6), Schedule(STEPS, 20, 1e-3)
    losses = []
    sizes = {"global_batch": BATCH, "micro_tokens": 32 * BATCH, "seed": SEED}
    with load_steps(dataset, "train", 32, rank=0, world_size=1, **sizes) as loader:
        for step in range(STEPS):
            [batch] = next(loader).micro_batches
            loss = model(**pad_micro_batch(batch, 32)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = schedule.learning_rate(step)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def test_every_loss_of_100_steps_is_within_a_thousandth(tmp_path):
    data = write_tiny_dataset(tmp_path / "data", seq_lens=(32,), instances=900)
    ours, theirs = our_losses(data, tmp_path), their_losses(data)
    assert len(ours) == len(theirs) == STEPS
    assert theirs[-1] < theirs[0] - 1.0
    assert ours == pytest.approx(theirs, abs=1e-3)
