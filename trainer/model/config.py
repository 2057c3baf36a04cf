"""Holds the sizes of a BERT, the sizes that Google released, and counts what training costs."""

import difflib
import math
from dataclasses import dataclass, field
from typing import Any, Literal

HEAD_SIZE = 64
MOST_LAYERS = 1_024
"""The most layers that a model may have: a mistyped number would build modules for hours."""
ATTENTION_BACKENDS = ("auto", "padded", "flash")


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT with its pretraining heads.

    Defaults are those of BERT-BASE (BERT paper, section 3).

    Example:
        ```python
        BertConfig(vocab_size=30_522, hidden_size=512, num_layers=8, num_heads=8,
                   intermediate_size=2_048)
        preset("medium", vocab_size=30_522)  # the same
        ```
    """

    vocab_size: int = 30_522
    """Number of entries of the vocabulary."""
    hidden_size: int = 768
    """Width of hidden states; a multiple of num_heads."""
    num_layers: int = 12
    """Number of layers of the encoder."""
    num_heads: int = 12
    """Number of attention heads of each layer."""
    intermediate_size: int = 3_072
    """Width of the feed-forward layer; 4 * hidden_size in every released size."""
    max_position_embeddings: int = 512
    """The longest sequence, in tokens, that the model can read."""
    type_vocab_size: int = 2
    """Number of token types: segments A and B."""
    hidden_dropout: float = 0.1
    """Dropout after the embeddings and after each sub-layer, before the residual sum."""
    attention_dropout: float = 0.1
    """Dropout on the attention probabilities."""
    layer_norm_eps: float = 1e-12
    """Number that LayerNorm adds to the variance."""
    initializer_range: float = 0.02
    """Standard deviation of the truncated normal the weight matrices start from."""
    pre_norm: bool = False
    """Whether LayerNorm is before each sub-layer and after the last, as in MegatronBert."""
    is_causal: bool = False
    """Whether a token attends only to itself and to earlier tokens, as in left-to-right models."""
    attention_backend: str = "auto"
    """One of ATTENTION_BACKENDS: "auto", "padded" or "flash". It changes speed only."""

    def __post_init__(self) -> None:
        for name, kind in BertConfig.__annotations__.items():
            _check_type(name, getattr(self, name), kind)
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size")
        self._check((*sizes, "max_position_embeddings", "type_vocab_size"), "at least 1", 1)
        if self.num_layers > MOST_LAYERS:
            says = f"model setting num_layers is {self.num_layers:,}; it must be at most"
            raise ValueError(f"{says} {MOST_LAYERS:,}")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} cannot be shared by {self.num_heads} heads; "
                f"choose num_heads that divides it (BERT has hidden_size / {HEAD_SIZE} heads)"
            )
        for name in ("hidden_dropout", "attention_dropout"):
            share = getattr(self, name)
            if not 0.0 <= share < 1.0:
                raise ValueError(f"model setting {name} is {share}; a dropout is in [0, 1)")
        self._check(("layer_norm_eps", "initializer_range"), "positive", math.ulp(0.0))
        if self.attention_backend not in ATTENTION_BACKENDS:
            raise ValueError(
                f"attention_backend {self.attention_backend!r} is unknown; choose one of "
                f"{', '.join(ATTENTION_BACKENDS)}"
            )

    def _check(self, names: tuple[str, ...], kind: str, least: float) -> None:
        """Raises a ValueError if a field is below a bound or not finite.

        Args:
            names: Names of the fields to check.
            kind: Says in the message what a field must be, such as "at least 1".
            least: The bound.
        """
        for name in names:
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise ValueError(f"model setting {name} is {value}; it must be {kind}")


@dataclass(frozen=True)
class ModelSettings:
    """The settings that choose which BERT is trained.

    Attributes:
        preset: A released size of BERT.
        overrides: Fields of BertConfig (trainer/model/config.py) that differ from the preset's,
            such as {"hidden_dropout": 0.0}. The vocabulary's size is the dataset's.
    """

    preset: Literal["tiny", "mini", "small", "medium", "base", "large"] = "base"
    overrides: dict[str, Any] = field(default_factory=dict)


# Google's released sizes: number of layers, hidden size (google-research/bert, README).
PRESETS = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1_024),
}


def preset(name: str, **overrides: Any) -> BertConfig:
    """Returns one of Google's released sizes of BERT, with some fields changed.

    Unless overridden, num_heads is hidden_size / 64 and intermediate_size is 4 * hidden_size.

    Example:
        ```python
        preset("base")
        preset("tiny", vocab_size=8_000, max_position_embeddings=128)
        ```

    Args:
        name: "tiny", "mini", "small", "medium", "base" or "large".
        **overrides: Fields of `BertConfig` by name.

    Raises:
        ValueError: There is no such size or field, or a value does not fit.
    """
    if name not in PRESETS:
        raise ValueError(f"model preset {name!r} is unknown; choose one of {', '.join(PRESETS)}")
    _check_overrides(overrides)
    sizes = dict(zip(("num_layers", "hidden_size"), PRESETS[name], strict=True)) | overrides
    hidden = sizes["hidden_size"]
    widths = {"num_heads": max(1, hidden // HEAD_SIZE), "intermediate_size": 4 * hidden}
    return BertConfig(**{**widths, **sizes})


def _check_overrides(overrides: dict[str, Any]) -> None:
    """Raises a ValueError if a name is no field of BertConfig, or a value has the wrong type."""
    fields = BertConfig.__annotations__
    for name, value in sorted(overrides.items()):
        if name not in fields:
            similar = difflib.get_close_matches(name, fields)
            hint = f"the settings are {', '.join(fields)}"
            if similar:
                hint = f"did you mean {similar[0]}?"
            raise ValueError(f"model setting {name} is unknown; {hint}")
        _check_type(name, value, fields[name])


def _check_type(name: str, value: Any, kind: type) -> None:
    """Raises a ValueError if a value is not of a type; a whole number is accepted for a float."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    takes = (int, float) if kind is float else kind
    if not isinstance(value, takes) or (isinstance(value, bool) and kind is not bool):
        shown = repr(value)[:60]
        raise ValueError(f"model setting {name} is {shown}; it must be {words[kind]}")


@dataclass(frozen=True)
class Lengths:
    """How long instances are, as far as the cost of training depends on it.

    All values are means over instances, or all are sums over the instances of a batch.

    Attributes:
        tokens: Mean or sum of the number of tokens of an instance, without padding.
        squared_tokens: Mean or sum of the square of that number, to which the cost of attention is
            proportional.
        masked: Mean or sum of the number of masked tokens of an instance.
    """

    tokens: float
    squared_tokens: float
    masked: float


def training_flops(config: BertConfig, lengths: Lengths) -> float:
    """Returns the floating-point operations of training on an instance or a batch.

    As NVIDIA and the PaLM paper (appendix B) count, a multiply-add of a matrix product is two
    operations. Padding and recomputed layers do not count.

    Args:
        config: The model's sizes.
        lengths: Means over instances for the operations of one instance, or sums over a batch for
            those of the batch.
    """
    h = config.hidden_size
    f = config.intermediate_size
    layers = config.num_layers
    dense = lengths.tokens * 2 * layers * (4 * h * h + 2 * h * f)
    attention = 4 * layers * h * lengths.squared_tokens
    head = lengths.masked * (2 * h * h + 2 * h * config.vocab_size)
    # A backward pass makes two products for each one of the forward pass.
    return 3 * (dense + attention + head)


def parameter_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of a model with both pretraining heads, by its name.

    The names, shapes and order are those of `BertForPreTraining.named_parameters`. The word
    embedding, which the masked language model head uses as its decoder, is there once.
    """
    h = config.hidden_size
    embeddings = "bert.embeddings"
    shapes: dict[str, tuple[int, ...]] = {
        f"{embeddings}.word.weight": (config.vocab_size, h),
        f"{embeddings}.position.weight": (config.max_position_embeddings, h),
        f"{embeddings}.token_type.weight": (config.type_vocab_size, h),
    }
    if not config.pre_norm:
        shapes |= _norm_shapes(f"{embeddings}.norm", h)
    for number in range(config.num_layers):
        layer = f"bert.layers.{number}"
        for name in ("query", "key", "value", "attention_output"):
            shapes |= _linear_shapes(f"{layer}.{name}", h, h)
        shapes |= _norm_shapes(f"{layer}.attention_norm", h)
        shapes |= _linear_shapes(f"{layer}.intermediate", h, config.intermediate_size)
        shapes |= _linear_shapes(f"{layer}.output", config.intermediate_size, h)
        shapes |= _norm_shapes(f"{layer}.output_norm", h)
    if config.pre_norm:
        shapes |= _norm_shapes("bert.final_norm", h)
    shapes |= _linear_shapes("bert.pooler", h, h)
    shapes["mlm_head.bias"] = (config.vocab_size,)
    shapes |= _linear_shapes("mlm_head.transform", h, h)
    shapes |= _norm_shapes("mlm_head.norm", h)
    return shapes | _linear_shapes("nsp_head", h, 2)


def _linear_shapes(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the parameters of a linear layer."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm_shapes(name: str, size: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the parameters of a LayerNorm."""
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def num_parameters(config: BertConfig) -> int:
    """Returns the number of parameters with both pretraining heads; tied ones count once."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())
