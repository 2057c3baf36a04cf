"""Large inputs in bounded memory and linear time, each in a process whose peak is measured."""

import gzip
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from string import ascii_lowercase

import pytest

from pipeline.storage.compression import MAX_RATIO
from pipeline.text.cleaning import clean_text
from pipeline.text.sentences import split_sentences
from tokenizer.encode import Encoder
from tokenizer.vocab import parse_vocab
from tokenizer.word_rule import UNCASED

ROOT = Path(__file__).parents[2]
MEGABYTE = 2**20

MEASURE = """
import sys
from pipeline.tokens.document_lists import DocumentList, clean_documents, split_documents
from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part

def peak():  # of this program alone, which getrusage does not say
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024

path, is_split = sys.argv[1], sys.argv[2] == "split"
before, num_documents, num_characters, num_sentences = peak(), 0, 0, 0
[file] = find_inputs([path])
for part in plan_parts([file], "auto", 2**25):
    for document in read_part(part):
        num_documents, num_characters = num_documents + 1, num_characters + len(document.text)
        if is_split:
            one = DocumentList("part", 0, True, [document])
            del document
            pieces = split_documents(clean_documents(one), ["en"]).documents
            num_sentences += sum(len(piece.sentences) for piece in pieces)
            assert max(piece.cleaned_bytes for piece in pieces) <= 8 * 2**20
print(peak() - before, num_documents, num_characters, num_sentences)
"""


def measure(path, split="read"):
    """Peak memory above that of the imports in bytes, documents, characters, sentences."""
    command = [sys.executable, "-c", MEASURE, str(path), split]
    said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    return tuple(map(int, said.split()))


def words(count, seed=0):
    """Sentences of random words out of 100, which shrink to a fifth or so."""
    draws = random.Random("words")
    pool = ["".join(draws.choices(ascii_lowercase, k=draws.randint(2, 9))) for _ in range(100)]
    draws.seed(seed)
    sentences = (" ".join(draws.choices(pool, k=12)).capitalize() for _ in range(count // 12))
    return ". ".join(sentences) + "."


@pytest.mark.processes
def test_a_gzip_of_128_megabytes_takes_the_memory_of_its_longest_document(tmp_path):
    lines = "".join(json.dumps({"text": words(600, seed)}) + "\n" for seed in range(1000)).encode()
    member = gzip.compress(lines, 6)  # gzip may hold many, one after another
    assert 2 < len(lines) / len(member) < MAX_RATIO
    copies = -(-(2**27) // len(lines))
    path = tmp_path / "large.jsonl.gz"
    with path.open("wb") as file:
        for _ in range(copies):
            file.write(member)
    peak, num_documents, num_characters, _ = measure(path)
    assert num_documents == 1000 * copies
    assert num_characters > 0.95 * 2**27
    assert peak < 50 * MEGABYTE


@pytest.mark.processes
@pytest.mark.parametrize("layout", ["text", "jsonl"])
def test_a_document_of_50_megabytes_is_read_split_and_cut_in_a_few_times_its_length(
    tmp_path, layout
):
    lines = words(12 * 1200, seed=1).replace(". ", ".\n")
    copies = -(-50 * MEGABYTE // (len(lines) + 1))
    path = tmp_path / f"long.{'txt' if layout == 'text' else 'jsonl'}"
    with path.open("w") as file:
        file.write('{"text": "' if layout == "jsonl" else "")
        for _ in range(copies):
            file.write(f"{lines}\n" if layout == "text" else f"{lines}\n".replace("\n", "\\n"))
        file.write('"}\n' if layout == "jsonl" else "")
    size = copies * (len(lines) + 1)
    peak, num_documents, num_characters, _ = measure(path)
    assert (num_documents, num_characters) == (1, size)
    assert peak < 6 * size
    peak, _, _, num_sentences = measure(path, "split")
    assert num_sentences == 1200 * copies
    assert peak < 8 * size


def seconds_of(call):
    """Of this process, whatever others do on the machine."""
    start = time.process_time()
    call()
    return time.process_time() - start


@pytest.mark.parametrize("unit", ["word ", "x", "“a. ", "A b c. ", "é力 ", "a, ", "(", "\t\t"])
def test_a_line_eight_times_as_long_takes_about_eight_times_as_long(unit, vocab_file):
    """0.25 and 2 MB, most without a full stop; a quadratic step would take 64 times as long."""
    encoder = Encoder(parse_vocab(vocab_file.read_bytes(), "vocab.txt"), UNCASED)

    def read(num_bytes):
        text = unit * (num_bytes // len(unit.encode()))
        encoder.encode_sentences(split_sentences(clean_text(text)))

    short, long = seconds_of(lambda: read(250_000)), seconds_of(lambda: read(2_000_000))
    print(f"{unit!r}: {short:.2f} s and {long:.2f} s")
    assert long < 24 * short + 0.3, "three times what a line's length alone would make it"
