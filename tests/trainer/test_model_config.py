import operator

import pytest
import torch

from trainer.model.bert import BertForPreTraining
from trainer.model.config import BertConfig, preset


def test_presets_are_the_released_sizes():
    names = ("tiny", "mini", "small", "medium", "base", "large")
    sizes = operator.attrgetter("num_layers", "hidden_size", "num_heads", "intermediate_size")
    found = [sizes(preset(name)) for name in names]
    assert found == [
        (2, 128, 2, 512), (4, 256, 4, 1024), (4, 512, 8, 2048), (8, 512, 8, 2048),
        (12, 768, 12, 3072), (24, 1024, 16, 4096),
    ]  # fmt: skip
    assert preset("base") == BertConfig()


def test_overrides_replace_fields_and_heads_follow_the_hidden_size():
    config = preset("tiny", hidden_size=192, vocab_size=1000, hidden_dropout=0.0)
    assert (config.num_heads, config.intermediate_size) == (3, 768)
    assert (config.vocab_size, config.hidden_dropout) == (1000, 0.0)
    assert preset("tiny", hidden_size=192, num_heads=6).num_heads == 6


@pytest.mark.parametrize(("name", "count"), [("base", 110_106_428), ("large", 336_226_108)])
def test_parameter_counts_with_both_heads(name, count):
    with torch.device("meta"):
        model = BertForPreTraining(preset(name))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: preset("huge"), "'huge' is unknown; choose one of tiny, mini, small, med"),
        (lambda: preset("tiny", hiden_size=1), "hiden_size is unknown; did you mean hidden_size"),
        (lambda: BertConfig(hidden_size=100, num_heads=3), "100 cannot be shared by 3 heads"),
        (lambda: preset("tiny", num_layers=1_000_000), "is 1,000,000; it must be at most 1,024"),
        (lambda: BertConfig(hidden_size="768"), "hidden_size is '768'; it must be a whole number"),
        (lambda: BertConfig(initializer_range=float("inf")), "range is inf; it must be positive"),
        (lambda: BertConfig(num_layers=0), "num_layers is 0; it must be at least 1"),
        (lambda: BertConfig(hidden_dropout=1.0), "hidden_dropout is 1.0; a dropout is in"),
        (lambda: BertConfig(layer_norm_eps=0.0), "layer_norm_eps is 0.0; it must be positive"),
        (lambda: BertConfig(attention_backend="fast"), "'fast' is unknown; choose one of auto"),
    ],
)
def test_errors_name_the_setting_and_the_choices(build, message):
    with pytest.raises(ValueError, match=message):
        build()
