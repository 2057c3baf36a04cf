"""The vocabulary of a dataset: reused from a file, or learned from a bounded sample of the input's documents.

vocab.json beside vocab.txt says what it was made of, so that running again reuses it and other input is refused.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from pipeline.cleaning import clean_text, document_id
from pipeline.documents.parts import InputFile, Part
from pipeline.documents.read import read_part
from pipeline.settings import BuildSettings
from pipeline.shards.manifest import json_bytes
from pipeline.shards.storage import open_filesystem, read_file, write_atomic
from tokenizer.export import tokenizer_json
from tokenizer.learn import learn_vocabulary
from tokenizer.vocab import Vocabulary, parse_vocab

VOCAB = "vocab.txt"
TOKENIZER = "tokenizer.json"
ORIGIN = "vocab.json"
MAX_SAMPLE_BYTES = 2 * 2**30
_ID_SCALE = 1 << 64


def prepare_vocabulary(
    settings: BuildSettings, files: Sequence[InputFile], parts: Sequence[Part], filesystem: Any, root: str
) -> Vocabulary:
    """Reuses the dataset's vocabulary, or makes it and writes vocab.txt, tokenizer.json and vocab.json.

    Raises:
        ValueError: The dataset has a vocabulary of another origin, or --vocab is not a BERT vocabulary.
    """
    origin = _origin(settings, files)
    if filesystem.exists(f"{root}/{ORIGIN}"):
        found = json.loads(read_file(filesystem, f"{root}/{ORIGIN}"))
        if found != origin:
            raise ValueError(
                f"{settings.output} holds a vocabulary made otherwise: {_differences(found, origin)};"
                " give the same settings and input, or another --output"
            )
        return parse_vocab(read_file(filesystem, f"{root}/{VOCAB}"), f"{settings.output}/{VOCAB}")
    vocabulary = _read_given(settings) if settings.vocab else _learn(settings, parts, sum(file.size for file in files))
    write_atomic(filesystem, f"{root}/{VOCAB}", vocabulary.to_text().encode())
    write_atomic(filesystem, f"{root}/{TOKENIZER}", tokenizer_json(vocabulary, settings.lower_case).encode())
    write_atomic(filesystem, f"{root}/{ORIGIN}", json_bytes(origin))
    return vocabulary


def _origin(settings: BuildSettings, files: Sequence[InputFile]) -> dict[str, Any]:
    """What decides the vocabulary: the given file, or the input and how it is learned."""
    if settings.vocab:
        return {"vocab_sha256": _read_given(settings).sha256, "lower_case": settings.lower_case}
    listing = "".join(f"{file.url} {file.size}\n" for file in files)
    return {
        "input": hashlib.blake2b(listing.encode(), digest_size=16).hexdigest(),
        "vocab_size": settings.vocab_size,
        "lower_case": settings.lower_case,
        "format": settings.format,
        "text_field": settings.text_field,
        "wrapping": settings.wrapping,
    }


def _differences(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    keys = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
    return ", ".join(f"{key} {found.get(key)} there, {wanted.get(key)} now" for key in keys)


def _read_given(settings: BuildSettings) -> Vocabulary:
    assert settings.vocab is not None
    filesystem, path = open_filesystem(settings.vocab, settings.filesystem_options())
    if not filesystem.isfile(path):
        raise FileNotFoundError(f"--vocab {settings.vocab}: no such file")
    return parse_vocab(read_file(filesystem, path), settings.vocab)


def _learn(settings: BuildSettings, parts: Sequence[Part], input_bytes: int) -> Vocabulary:
    fraction = min(1.0, MAX_SAMPLE_BYTES / max(1, input_bytes))
    vocabulary = learn_vocabulary(_sample_texts(settings, parts, fraction), settings.vocab_size, settings.lower_case)
    if len(vocabulary) < settings.vocab_size:
        tqdm.write(f"the input holds {len(vocabulary)} distinct pieces, fewer than vocab_size {settings.vocab_size}")
    return vocabulary


def _sample_texts(settings: BuildSettings, parts: Sequence[Part], fraction: float) -> Iterator[str]:
    """Cleaned text of the documents whose ids fall in a fraction of all ids, at most 2 GiB."""
    num_bytes = 0
    for part in tqdm(parts, desc="vocabulary", unit="part"):
        documents = read_part(
            part,
            text_field=settings.text_field,
            on_bad_document=settings.on_bad_document,
            skipped={},
            storage_options=settings.filesystem_options(),
        )
        for document in documents:
            text = clean_text(document.text)
            if int.from_bytes(document_id(text)[:8], "big") < fraction * _ID_SCALE and num_bytes < MAX_SAMPLE_BYTES:
                num_bytes += len(text)
                yield text
