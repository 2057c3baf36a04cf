"""What our transforms ask of a pipeline before it runs: an end of its input, and one writer."""

import os
from typing import Any, Protocol, runtime_checkable

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.transforms.window import GlobalWindows

from pipeline.storage.folder import Folder


@runtime_checkable
class Writer(Protocol):
    """A transform that writes files."""

    def written_places(self) -> set[str]:
        """Returns the places that it alone may write to, as `place_of` spells them."""


def place_of(folder: Folder, name: str = "") -> str:
    """Returns the URL of a folder, or of a name in it; of a local one the path without links."""
    where = folder.locate(name)
    return os.path.realpath(where) if folder.is_local else where


def refuse_second_writer(pipeline: beam.Pipeline, transform: Writer, cure: str) -> None:
    """Compares a transform that is being applied with those that its pipeline has already.

    Raises:
        ValueError: Two of them, or this one twice, write to one place.
    """
    visitor = _FindWriters()
    pipeline.visit(visitor)
    for place in sorted(transform.written_places()):
        labels = [label for label, places in visitor.found if place in places]
        if len(labels) > 1:
            raise ValueError(
                f"{place}: two transforms of one pipeline write there, {labels[0]} and"
                f" {labels[1]}, and each would undo the other's work; {cure}"
            )


class _FindWriters(PipelineVisitor):  # type: ignore[misc]
    """Notes the label and the places of every writer in a pipeline."""

    def __init__(self) -> None:
        self.found: list[tuple[str, set[str]]] = []

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        """Called by Beam for each transform that has parts."""
        if isinstance(transform_node.transform, Writer):
            label = transform_node.full_label
            self.found.append((label, transform_node.transform.written_places()))


def in_one_window(
    elements: beam.PCollection[Any], transform: beam.PTransform
) -> beam.PCollection[Any]:
    """Returns the elements without the windows that a pipeline may have made.

    Raises:
        ValueError: The elements never end.
    """
    if not elements.is_bounded:
        raise ValueError(f"{transform.label}: what comes never ends; give a bounded PCollection")
    return elements | "InOneWindow" >> beam.WindowInto(GlobalWindows())
