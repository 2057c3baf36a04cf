"""Names of the files of models, and what is said where they are missing."""

CONFIG, WEIGHTS, VOCAB = "config.json", "model.safetensors", "vocab.txt"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
GOOGLE_CONFIG = "bert_config.json"
PROVENANCE_KEY = "beambert"
"""The key of config.json under which an export says what is known of the training."""
LATEST = "latest_universal"
"""The file that names the folder of DeepSpeed's universal checkpoint."""


def expected_files() -> str:
    """Returns what a folder of a model holds, for the message about one that holds it not."""
    return (
        f"expected {CONFIG} with {WEIGHTS} (Hugging Face) or {LATEST} (DeepSpeed), or "
        f"{GOOGLE_CONFIG} with one checkpoint NAME.ckpt.index (Google)"
    )
