"""google-checkpoint/, and what its tensors are of.

It was written by TensorFlow 2.21's tf.compat.v1.train.Saver: the variables of
google-research/bert's model, a slot of its optimizer and the step, each element 0.3 sin(its number
+ crc32(name) mod 1000) in float32.
"""

from pathlib import Path

from trainer.model.config import BertConfig

GOOGLE = Path(__file__).with_name("google-checkpoint")
SIZES = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "intermediate_size": 12}
CONFIG = BertConfig(vocab_size=30, max_position_embeddings=16, **SIZES)
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxy"]
VOCAB = "".join(f"{token}\n" for token in TOKENS)
