"""Names the files of a model folder."""

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
VOCAB = "vocab.txt"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GOOGLE_CONFIG = "bert_config.json"
PROVENANCE_KEY = "beambert"
"""The key of config.json under which an export writes what is known of the training."""
LATEST = "latest_universal"
"""The file that names the folder of DeepSpeed's universal checkpoint."""


def expected_files() -> str:
    """Returns the part of an error message that says which files a model folder should have."""
    return (
        f"expected {CONFIG} with {WEIGHTS} (Hugging Face) or {LATEST} (DeepSpeed), or "
        f"{GOOGLE_CONFIG} with one checkpoint NAME.ckpt.index (Google)"
    )
