"""Names of a model's files, and the message about missing ones."""

CONFIG, WEIGHTS, VOCAB = "config.json", "model.safetensors", "vocab.txt"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
GOOGLE_CONFIG = "bert_config.json"
PROVENANCE_KEY = "beambert"
"""The key of config.json under which an export says what is known of the training."""
LATEST = "latest_universal"
"""The file that names the folder of DeepSpeed's universal checkpoint."""


def expected_files() -> str:
    """Returns the end of the message about a folder without a model: which files were expected."""
    return (
        f"expected {CONFIG} with {WEIGHTS} (Hugging Face) or {LATEST} (DeepSpeed), or "
        f"{GOOGLE_CONFIG} with one checkpoint NAME.ckpt.index (Google)"
    )
