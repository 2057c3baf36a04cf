"""Which layers' states are taken, and what the columns are called."""

from collections.abc import Sequence

from trainer.inference.features.settings import Combine


def choose_layers(text: str, num_layers: int) -> tuple[int, ...]:
    """Numbers of layers, 0 the embeddings, from "-1,-2" or "all".

    Raises:
        ValueError: Something else, a layer that the model has not, or one named twice.
    """
    if text == "all":
        return tuple(range(num_layers + 1))
    try:
        named = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"layers is {text!r}; expected numbers separated by commas, or all") from error
    wrong = [layer for layer in named if not -num_layers - 1 <= layer <= num_layers]
    if wrong:
        raise ValueError(
            f"layers names {wrong[0]}; the model has 0 (embeddings) to {num_layers}, or -{num_layers + 1} to -1"
        )
    chosen = tuple(layer % (num_layers + 1) for layer in named)
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"layers {text} names a layer twice: they are {', '.join(map(str, chosen))}")
    return chosen


def column_names(layers: Sequence[int], combine: Combine) -> list[str]:
    """Names of the columns of vectors; `layers` is empty for the pooler."""
    if not layers:
        return ["pooler"]
    if combine == "each":
        return [f"layer_{layer}" for layer in layers]
    return [f"{combine}_{'_'.join(map(str, layers))}"]
