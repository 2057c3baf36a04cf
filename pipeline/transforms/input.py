"""Checks a pipeline before it runs.

The input of a transform that writes a dataset must be bounded. Two transforms of a pipeline must
not write to the same files.
"""

import os
from typing import Any, Protocol, runtime_checkable

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.transforms.window import GlobalWindows

from pipeline.storage.folder import Folder


@runtime_checkable
class Writer(Protocol):
    """A transform that writes files, and says where, so that two writers cannot collide."""

    def written_places(self) -> set[str]:
        """Returns the URLs (`place_of`) of files and folders that only this transform may write."""


def place_of(folder: Folder, name: str = "") -> str:
    """Returns the URL of a folder, or of the file `name` in it, in a form that can be compared.

    A local path is returned with all symbolic links resolved, so that two paths to the same file
    are equal.
    """
    where = folder.locate(name)
    return os.path.realpath(where) if folder.is_local else where


def refuse_second_writer(pipeline: beam.Pipeline, transform: Writer, cure: str) -> None:
    """Refuses a transform that writes where another transform of its pipeline writes.

    Args:
        pipeline: The pipeline that the transform is applied in.
        transform: The transform, which is part of the pipeline already.
        cure: What to do instead, for the message.

    Raises:
        ValueError: Two transforms, or this one applied twice, write to one place.
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
    """Collects the writers of a pipeline.

    Attributes:
        found: For each writer its label in the pipeline, and its `written_places`.
    """

    def __init__(self) -> None:
        self.found: list[tuple[str, set[str]]] = []

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        """Adds a transform to `found` if it is a writer. Beam calls this for each composite one."""
        if isinstance(transform_node.transform, Writer):
            label = transform_node.full_label
            self.found.append((label, transform_node.transform.written_places()))


def in_one_window(
    elements: beam.PCollection[Any], transform: beam.PTransform
) -> beam.PCollection[Any]:
    """Puts all elements of a PCollection into the global window.

    Otherwise a step that gathers elements would gather those of each window separately.

    Args:
        elements: The elements, in any windows.
        transform: The transform whose input they are, for the message.

    Raises:
        ValueError: The PCollection is unbounded.
    """
    if not elements.is_bounded:
        raise ValueError(f"{transform.label}: what comes never ends; give a bounded PCollection")
    return elements | "InOneWindow" >> beam.WindowInto(GlobalWindows())
