"""Models by their names on the Hugging Face Hub: `bert-base-uncased` or `org/name`."""

from pipeline.storage.hub import fetch_from_hub, is_hub_name
from trainer.conversion.export import CONFIG, TOKENIZER, TOKENIZER_CONFIG, VOCAB, WEIGHTS

PICKLED_WEIGHTS = "pytorch_model.bin"


def resolve_model(name: str) -> str:
    """The folder of a model: the name itself, or where a model of the Hub by that name was put.

    Raises:
        FileNotFoundError: It is no folder, and the Hub gives no model of that name.
    """
    if not is_hub_name(name):
        return name
    folder = fetch_from_hub(name, (CONFIG, VOCAB, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS))
    if not (folder / WEIGHTS).exists():
        folder = fetch_from_hub(name, (CONFIG, VOCAB, PICKLED_WEIGHTS))
    return str(folder)
