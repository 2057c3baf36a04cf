"""The build benchmark's peer: google-research/bert's `create_pretraining_data.py`, restated.

    python scripts/bench/reference_build.py --input sentences.txt --vocab vocab.txt --passes 5
    --output out.tfrecord

One process, one generator for all draws, tokens as strings, every instance padded and kept in
memory, as the original does it. With TensorFlow installed it writes TFRecords of tf.train.Example;
without it that part (a quarter of the time) is left out, and said so. Stands alone: it imports
nothing of this project, so any environment can run it. Prints one JSON line with the CPU seconds of
each stage.
"""

import argparse
import collections
import json
import random
import resource
import sys
import time
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

Document = list[list[str]]


class Instance(NamedTuple):
    """One output row: tokens with specials and masks."""

    tokens: list[str]
    segment_ids: list[int]
    positions: list[int]
    labels: list[str]
    is_random_next: bool


class Tokenizer:
    """BasicTokenizer (uncased), then WordpieceTokenizer, character by character."""

    def __init__(self, tokens: list[str]) -> None:
        self.ids = {token: index for index, token in enumerate(tokens)}

    def tokenize(self, text: str) -> list[str]:
        """Pieces of a line."""
        return [piece for word in self._split_words(text) for piece in self._split_pieces(word)]

    def _split_words(self, text: str) -> Iterator[str]:
        cleaned = []
        for char in text:
            code = ord(char)
            if code in {0, 0xFFFD} or (
                char not in "\t\n\r" and unicodedata.category(char) in {"Cc", "Cf"}
            ):
                continue
            cleaned.append(" " if char in " \t\n\r" or unicodedata.category(char) == "Zs" else char)
        spaced = []
        for char in "".join(cleaned):
            spaced += [" ", char, " "] if _is_chinese(ord(char)) else [char]
        for token in "".join(spaced).strip().split():
            kept = [
                char
                for char in unicodedata.normalize("NFD", token.lower())
                if unicodedata.category(char) != "Mn"
            ]
            words: list[list[str]] = []
            begins = True
            for char in kept:
                if _is_punctuation(char):
                    words.append([char])
                    begins = True
                else:
                    if begins:
                        words.append([])
                    begins = False
                    words[-1].append(char)
            yield from ("".join(word) for word in words)

    def _split_pieces(self, word: str) -> list[str]:
        chars = list(word)
        if len(chars) > 200:
            return ["[UNK]"]
        pieces: list[str] = []
        start = 0
        while start < len(chars):
            end = len(chars)
            found = None
            while start < end:
                piece = "".join(chars[start:end])
                if start > 0:
                    piece = "##" + piece
                if piece in self.ids:
                    found = piece
                    break
                end -= 1
            if found is None:
                return ["[UNK]"]
            pieces.append(found)
            start = end
        return pieces


def read_documents(path: str, tokenizer: Tokenizer) -> list[Document]:
    """Reads a file that has one sentence per line and a blank line between documents."""
    documents: list[Document] = [[]]
    with open(path, encoding="utf-8") as file:
        for line in file:
            if not line.strip():
                documents.append([])
            elif tokens := tokenizer.tokenize(line.strip()):
                documents[-1].append(tokens)
    return [document for document in documents if document]


def create_instances(
    documents: list[Document], vocab: list[str], settings: argparse.Namespace, rng: random.Random
) -> list[Instance]:
    """Returns the instances of all passes, shuffled."""
    rng.shuffle(documents)
    instances = [
        instance
        for _ in range(settings.passes)
        for index in range(len(documents))
        for instance in create_from_document(documents, index, vocab, settings, rng)
    ]
    rng.shuffle(instances)
    return instances


def create_from_document(
    documents: list[Document],
    index: int,
    vocab: list[str],
    settings: argparse.Namespace,
    rng: random.Random,
) -> list[Instance]:
    """Pairs of one document, each masked at once."""
    document = documents[index]
    most = settings.seq_len - 3
    target = rng.randint(2, most) if rng.random() < settings.short_seq_prob else most
    instances: list[Instance] = []
    chunk: list[list[str]] = []
    length = i = 0
    while i < len(document):
        chunk.append(document[i])
        length += len(document[i])
        if i == len(document) - 1 or length >= target:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            tokens_a = [token for sentence in chunk[:a_end] for token in sentence]
            is_random_next = len(chunk) == 1 or rng.random() < 0.5
            tokens_b: list[str] = []
            if is_random_next:
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                start = rng.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][start:]:
                    tokens_b.extend(sentence)
                    if len(tokens_b) >= target - len(tokens_a):
                        break
                i -= len(chunk) - a_end
            else:
                tokens_b.extend(token for sentence in chunk[a_end:] for token in sentence)
            truncate(tokens_a, tokens_b, most, rng)
            tokens = ["[CLS]", *tokens_a, "[SEP]", *tokens_b, "[SEP]"]
            segment_ids = [0] * (len(tokens_a) + 2) + [1] * (len(tokens_b) + 1)
            instances.append(
                Instance(*mask(tokens, segment_ids, vocab, settings, rng), is_random_next)
            )
            chunk = []
            length = 0
        i += 1
    return instances


def truncate(tokens_a: list[str], tokens_b: list[str], most: int, rng: random.Random) -> None:
    """Drops tokens of the longer segment, from its front or back, one by one."""
    while len(tokens_a) + len(tokens_b) > most:
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def mask(
    tokens: list[str],
    segment_ids: list[int],
    vocab: list[str],
    settings: argparse.Namespace,
    rng: random.Random,
) -> tuple[list[str], list[int], list[int], list[str]]:
    """Masks 15 % of the tokens: [MASK], the token itself or any other, 80, 10 and 10 %."""
    candidates = [[i] for i, token in enumerate(tokens) if token not in {"[CLS]", "[SEP]"}]
    rng.shuffle(candidates)
    masked = list(tokens)
    count = min(settings.max_predictions, max(1, round(len(tokens) * settings.masked_lm_prob)))
    chosen: list[tuple[int, str]] = []
    covered = set()
    for group in candidates:
        if len(chosen) >= count:
            break
        for i in group:
            covered.add(i)
            if rng.random() < 0.8:
                shown = "[MASK]"
            else:
                shown = tokens[i] if rng.random() < 0.5 else vocab[rng.randint(0, len(vocab) - 1)]
            masked[i] = shown
            chosen.append((i, tokens[i]))
    chosen.sort()
    return masked, segment_ids, [i for i, _ in chosen], [label for _, label in chosen]


def load_tensorflow() -> Any:
    """Imports TensorFlow, and returns the module, or None if it is not installed."""
    try:
        import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ModuleNotFoundError:
        return None
    return tf


def write_instances(
    instances: list[Instance], ids: dict[str, int], settings: argparse.Namespace, tensorflow: Any
) -> None:
    """Writes instances as TFRecords, with features that are padded."""

    def feature(values: list[Any], kind: str = "int64") -> Any:
        if kind == "int64":
            return tensorflow.train.Feature(
                int64_list=tensorflow.train.Int64List(value=list(values))
            )
        return tensorflow.train.Feature(float_list=tensorflow.train.FloatList(value=list(values)))

    with tensorflow.io.TFRecordWriter(settings.output) as writer:
        for instance in instances:
            input_ids = [ids[token] for token in instance.tokens]
            padding = [0] * (settings.seq_len - len(input_ids))
            label_ids = [ids[label] for label in instance.labels]
            label_padding = [0] * (settings.max_predictions - len(label_ids))
            features = collections.OrderedDict[str, Any]()
            features["input_ids"] = feature(input_ids + padding)
            features["input_mask"] = feature([1] * len(input_ids) + padding)
            features["segment_ids"] = feature(instance.segment_ids + padding)
            features["masked_lm_positions"] = feature(instance.positions + label_padding)
            features["masked_lm_ids"] = feature(label_ids + label_padding)
            features["masked_lm_weights"] = feature(
                [1.0] * len(label_ids) + [0.0] * len(label_padding), "float"
            )
            features["next_sentence_labels"] = feature([int(instance.is_random_next)])
            example = tensorflow.train.Example(features=tensorflow.train.Features(feature=features))
            writer.write(example.SerializeToString())


def main() -> int:
    """Runs the three stages and prints what each cost."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--input", required=True, help="a sentence a line, a blank line between documents"
    )
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--max_predictions", type=int, default=20)
    parser.add_argument("--short_seq_prob", type=float, default=0.1)
    parser.add_argument("--masked_lm_prob", type=float, default=0.15)
    settings = parser.parse_args()
    with open(settings.vocab, encoding="utf-8") as file:
        vocab = file.read().split("\n")[:-1]
    tokenizer = Tokenizer(vocab)
    seconds: dict[str, float] = {}

    def finish(stage: str) -> None:
        seconds[stage] = round(time.process_time() - sum(seconds.values()), 2)

    tensorflow = load_tensorflow()
    finish("start")
    documents = read_documents(settings.input, tokenizer)
    num_tokens = sum(len(sentence) for document in documents for sentence in document)
    finish("tokenise")
    instances = create_instances(documents, vocab, settings, random.Random(12345))
    finish("create")
    if tensorflow:
        write_instances(instances, tokenizer.ids, settings, tensorflow)
        finish("write")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    result = {
        "instances": len(instances),
        "corpus_tokens": num_tokens,
        "cpu_seconds_by_stage": seconds,
        "peak_mb": peak,
    }
    print(json.dumps(result))
    return 0


def _is_chinese(code: int) -> bool:
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2B73F
        or 0x2B740 <= code <= 0x2B81F
        or 0x2B820 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


def _is_punctuation(char: str) -> bool:
    code = ord(char)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(char).startswith("P")


if __name__ == "__main__":
    sys.exit(main())
