"""MB of sentences a CPU-second into arrays of ids, beside `tokenizers` and tensorflow-text.

    python -m scripts.bench.encode --input 'wiki_en/*.zst' --vocab vocab.txt
    python -m scripts.bench.encode ... --tensorflow_python tfenv/bin/python   # with tensorflow-text

One process, one thread each, the same sentences, into arrays of the vocabulary's dtype. Our encoder
(`path` says which of the two) is measured on all of them when it is new (cold), on the second half
when it has met the first (further), and on all again (warm); `start` is the CPU seconds that making
one takes. The peers have no memory worth warming. `--peer_megabytes` bounds what the slow one gets.
`sentences_that_differ` counts the sentences whose ids are not ours; tensorflow-text has other
Unicode tables, so its may differ where text is not ASCII.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # before the import, which reads them

import numpy as np
from tokenizers import Tokenizer

from pipeline.text.sentences import split_sentences
from scripts.bench.measured import cpu_seconds, print_result, read_documents, summarize
from scripts.checkout import make_parser
from tokenizer.encode import Encoder
from tokenizer.export import tokenizer_json
from tokenizer.vocab import Vocabulary, parse_vocab
from tokenizer.word_rule import WordRule

NUM_AT_ONCE = 20_000
Ids = list[bytes]

TENSORFLOW = """
import json, os, pickle, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, tensorflow as tf, tensorflow_text as text
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
with open(sys.argv[1], "rb") as file:
    tokens, lower_case, sentences, num_at_once, repeat, dtype = pickle.load(file)
tokenizer = text.FastBertTokenizer(
    tokens, token_out_type=tf.int32, lower_case_nfd_strip_accents=lower_case, max_bytes_per_word=200
)
starts = range(0, len(sentences), num_at_once)
encode = lambda some: tokenizer.tokenize(some)
encode(sentences[:100])
seconds = []
for _ in range(repeat):
    begin = time.process_time()
    found = [encode(sentences[start : start + num_at_once]) for start in starts]
    arrays = [each.flat_values.numpy().astype(dtype) for each in found]
    seconds.append(time.process_time() - begin)
lengths = np.concatenate([each.row_lengths().numpy() for each in found])
with open(sys.argv[2], "wb") as file:
    pickle.dump((np.concatenate(arrays), lengths), file)
versions = {"tensorflow": tf.__version__, "tensorflow-text": text.__version__}
print(json.dumps({"seconds": seconds, "versions": versions}))
"""


def main() -> int:
    """Measures, compares, prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--input", nargs="+", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--lower_case", choices=("true", "false"), default="true")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peer_megabytes", type=float, default=4.0)
    parser.add_argument("--tensorflow_python")
    config = parser.parse_args()
    lower_case = config.lower_case == "true"
    vocab = parse_vocab(Path(config.vocab).read_bytes(), config.vocab)
    sentences = [each for text in read_documents(config.input) for each in split_sentences(text)]
    make = partial(Encoder, vocab, WordRule(lower_case))
    expected = split_ids(*make().encode_sentences(sentences))
    ours = measure_ours(make, sentences, config.repeat)
    peers = {"tokenizers": measure_library(sentences, expected, vocab, lower_case, config)}
    if config.tensorflow_python:
        peers["tensorflow_text"] = measure_tensorflow(
            sentences, expected, vocab, lower_case, config
        )
    print_result(
        "encode",
        vars(config),
        ("numpy", "pyarrow", "tokenizers"),
        unit="MB per CPU-second",
        megabytes=round(count_megabytes(sentences), 2),
        sentences=len(sentences),
        ours=ours,
        peers=peers,
    )
    return 0


def measure_ours(
    make: Callable[[], Encoder], sentences: Sequence[str], repeat: int
) -> dict[str, Any]:
    """Rates of new encoders, of their second halves, and of the same text again."""
    middle = len(sentences) // 2
    halves = sentences[:middle], sentences[middle:]
    rates: dict[str, list[float]] = {"start": [], "cold": [], "further": [], "warm": []}
    for _ in range(repeat):
        rates["start"].append(cpu_seconds(make))
        encoder = make()
        first, second = (cpu_seconds(partial(_encode, encoder, half)) for half in halves)
        again = cpu_seconds(partial(_encode, encoder, sentences))
        rates["cold"].append(count_megabytes(sentences) / (first + second))
        rates["further"].append(count_megabytes(halves[1]) / second)
        rates["warm"].append(count_megabytes(sentences) / again)
    return {name: summarize(each) for name, each in rates.items()} | {
        "path": type(make().path).__name__
    }


def measure_library(
    sentences: Sequence[str],
    expected: Ids,
    vocab: Vocabulary,
    lower_case: bool,
    config: argparse.Namespace,
) -> dict[str, Any]:
    """Measures `encode_batch_fast` with the exported tokenizer.json, and one array of all ids."""
    library = Tokenizer.from_str(tokenizer_json(vocab, WordRule(lower_case)))
    library.encode_special_tokens = True
    sizes = np.cumsum([len(sentence.encode()) for sentence in sentences])
    some = sentences[: int(np.searchsorted(sizes, config.peer_megabytes * 1e6)) + 1]
    found: list[Any] = []

    def encode() -> None:
        found.clear()
        for start in range(0, len(some), NUM_AT_ONCE):
            batch = library.encode_batch_fast(
                some[start : start + NUM_AT_ONCE], add_special_tokens=False
            )
            found.extend(np.array(each.ids, vocab.dtype) for each in batch)
        np.concatenate(found)

    rates = [count_megabytes(some) / cpu_seconds(encode) for _ in range(config.repeat)]
    differ = sum(ids.tobytes() != ours for ids, ours in zip(found, expected, strict=False))
    return summarize(rates) | {"sentences": len(some), "sentences_that_differ": differ}


def measure_tensorflow(
    sentences: Sequence[str],
    expected: Ids,
    vocab: Vocabulary,
    lower_case: bool,
    config: argparse.Namespace,
) -> dict[str, Any]:
    """Measures FastBertTokenizer in another interpreter, from Python strings to an array of ids."""
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        given = Path(folder, "given")
        answer = Path(folder, "answer")
        texts = list(vocab.tokens), lower_case, list(sentences)
        arguments = *texts, NUM_AT_ONCE, config.repeat, vocab.dtype.name
        given.write_bytes(pickle.dumps(arguments))
        command = [config.tensorflow_python, "-c", TENSORFLOW, str(given), str(answer)]
        ran = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        ids = split_ids(*pickle.loads(answer.read_bytes()))
    result = json.loads(ran.stdout.splitlines()[-1])
    rates = [count_megabytes(sentences) / seconds for seconds in result["seconds"]]
    differ = sum(theirs != ours for theirs, ours in zip(ids, expected, strict=True))
    found = {
        "sentences": len(sentences),
        "sentences_that_differ": differ,
        "versions": result["versions"],
    }
    return summarize(rates) | found


def split_ids(ids: Any, lengths: Any) -> Ids:
    """Returns the ids of each sentence, as bytes."""
    return [part.tobytes() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def count_megabytes(sentences: Sequence[str]) -> float:
    """Millions of bytes of UTF-8."""
    return sum(len(sentence.encode()) for sentence in sentences) / 1e6


def _encode(encoder: Encoder, sentences: Sequence[str]) -> None:
    for start in range(0, len(sentences), NUM_AT_ONCE):
        encoder.encode_sentences(sentences[start : start + NUM_AT_ONCE])


if __name__ == "__main__":
    sys.exit(main())
