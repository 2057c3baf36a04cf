"""Documents that are alike, and which of them are dropped by the rule read literally."""

import random

import numpy as np

from pipeline.text.cleaning import document_id
from pipeline.text.minhash import band_keys, sign_texts
from pipeline.tokens.grouped_rows import HEAD_BYTES
from pipeline.tokens.near_duplicates import (
    BANDED_DTYPE,
    LEADERS,
    SIGNED_DTYPE,
    find_near_duplicates,
    pack_bands,
    pack_signatures,
    similarity_rule,
)
from pipeline.tokens.token_parts import TokenizedDocument, join_id

VOCABULARY = [
    f"{a}{b}"
    for a in ("ri", "mo", "ga", "le", "wi", "si", "ca", "do")
    for b in ("ver", "tal", "den", "ter")
]


def make_text(number, num_words=150):
    rng = random.Random(number)
    words = [f"{rng.choice(VOCABULARY)}{rng.randrange(40)}" for _ in range(num_words)]
    return ". ".join(" ".join(words[start : start + 10]) for start in range(0, num_words, 10)) + "."


def change_words(text, share, seed, words=VOCABULARY):
    rng = random.Random(seed)
    return " ".join(rng.choice(words) if rng.random() < share else word for word in text.split(" "))


def shingles(text):
    words = text.lower().split()
    return {tuple(words[start : start + 5]) for start in range(max(1, len(words) - 4))}


def jaccard(left, right):
    a, b = shingles(left), shingles(right)
    return len(a & b) / len(a | b)


def sign_documents(texts):
    empty = np.zeros(0, np.uint16)
    return [
        TokenizedDocument(document_id(text), 0, empty, empty, signature=row.tobytes())
        for text, row in zip(texts, sign_texts(texts), strict=True)
    ]


def band_rows(texts, rule):
    signed = np.frombuffer(pack_signatures(sign_documents(texts)), SIGNED_DTYPE)
    return np.frombuffer(pack_bands(signed, rule)[HEAD_BYTES:], BANDED_DTYPE)


def find_dropped(texts, threshold=0.8):
    """Texts that are dropped, with what each is like."""
    by_id = {document_id(text): text for text in texts}
    rule = similarity_rule(threshold)
    return {
        by_id[join_id(row["high"], row["low"])]: by_id[join_id(row["other_high"], row["other_low"])]
        for row in find_near_duplicates(band_rows(texts, rule), rule.matches)
    }


def oracle(texts, threshold):
    """The rule read literally: under each band key, compared with the first LEADERS smaller ids."""
    rule = similarity_rule(threshold)
    signed = {
        document.id: np.frombuffer(document.signature, "<u2") for document in sign_documents(texts)
    }
    groups = {}
    for each, signature in sorted(signed.items()):
        for key in band_keys(signature[None], rule.bands, rule.rows)[0]:
            groups.setdefault(int(key), []).append(each)
    return {
        later
        for members in groups.values()
        for index, later in enumerate(members)
        for earlier in members[: min(index, LEADERS)]
        if np.count_nonzero(signed[later] & 15 == signed[earlier] & 15) >= rule.matches
    }
