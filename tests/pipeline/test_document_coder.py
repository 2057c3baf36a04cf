"""Beam is told the size of lists of documents by their coder, which gives them back as they were."""

import apache_beam as beam
import numpy as np
import pytest

from pipeline.documents import Document
from pipeline.documents.parts import Part
from pipeline.jobs.tokens_job import (
    CleanDocuments,
    DocumentListCoder,
    EncodeDocuments,
    ReadDocuments,
    ReadingRule,
    SplitSentences,
)
from pipeline.tokens.document_lists import DocumentList, SplitDocument
from pipeline.tokens.token_parts import TokenizedDocument

TOKENIZED = TokenizedDocument(
    bytes(16), 7, np.array([2, 1], np.uint16), np.array([5, 6, 7], np.uint16), where="here"
)


@pytest.mark.parametrize(
    ("document", "size"),
    [
        (Document("some text", "here"), 9),
        (SplitDocument(bytes(16), 7, ["One.", "Two"]), 7),
        (TOKENIZED, 10),
    ],
)
def test_lists_come_back_and_have_their_size(document, size):
    coder = DocumentListCoder()
    documents = DocumentList("part", 3, True, [document, document], {"documents_read": 2}, source=1)
    again = coder.decode(coder.encode(documents))
    assert repr(again) == repr(documents)
    assert coder.estimate_size(documents) == 2 * size


def test_no_stage_pickles_a_list_to_measure_it():
    pipeline = beam.Pipeline(argv=["--runner=FnApiRunner"])
    read = (
        pipeline
        | beam.Create([Part(("a.txt",))])
        | ReadDocuments(ReadingRule(("text",), "stop", 10))
    )
    cleaned = read | CleanDocuments()
    split = cleaned | SplitSentences(("en",))
    encoded = split | EncodeDocuments(b"[UNK]", lower_case=True)
    for stage in (read, cleaned, split, encoded):
        assert isinstance(beam.coders.registry.get_coder(stage.element_type), DocumentListCoder), (
            stage
        )
