"""The settings of `python -m trainer ask`."""

import re
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class AskSettings:
    """Says which instances and documents the steps of a run read, without loading the model.

    Attributes:
        run: The folder of the run, or its --checkpoint.url.
        step: A step such as 1200, or several such as 1200-1210, whose instances are listed with
            their documents, tokens and masks.
        document: Documents to look for in all steps: each is an id, or the first 16 or more of its
            hex digits, or SOURCE:PLACE as `python -m pipeline inspect` shows it.
        text: Files whose whole text is a document to look for in all steps.
        spikes: Whether to list the instances of the steps whose gradients were not used.
        format: How the answer is written: as a table to read; as jsonl, one JSON object per line
            with all tokens and masks; or as an html page.
        output: File of the answer. null prints it, or writes a page to ask.html in the run's
            folder, which must then be on this machine.
        origins: Whether to look up where each document is from. In a corpus of many thousand files,
            looking up the documents of a whole step takes minutes.
        data: Where the run's datasets are now, in the order of the run, if they were moved.
        cache_dir: Folder on a disk of this machine for the index from documents to instances, which
            the first question about a document builds. null means beambert in $XDG_CACHE_HOME,
            which is ~/.cache by default.
        storage_options: Options of the filesystems of the run and of its datasets, as JSON or
            @FILE.
    """

    run: str
    step: str | None = None
    document: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    spikes: bool = False
    format: Literal["table", "jsonl", "html"] = "table"
    output: str | None = None
    origins: bool = True
    data: list[str] = field(default_factory=list)
    cache_dir: str | None = None
    storage_options: str | None = None

    def __post_init__(self) -> None:
        about_steps = self.step is not None or self.spikes
        about_documents = bool(self.document or self.text)
        if not about_steps and not about_documents:
            raise ValueError("nothing is asked: give --step, --spikes, --document or --text")
        if about_steps and about_documents:
            raise ValueError(
                "--step and --spikes list what steps read, --document and --text list which steps"
                " read a document: ask one after the other"
            )
        if self.step is not None and self.spikes:
            raise ValueError("--spikes finds the steps itself: give --step or --spikes")
        _ = self.steps

    @property
    def steps(self) -> range:
        """The steps that `step` names; empty if it names none.

        Raises:
            ValueError: `step` is not a number or a range of numbers.
        """
        if self.step is None:
            return range(0)
        match = re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", self.step)
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else 0
        if not 1 <= first <= last:
            raise ValueError(
                f"step is {self.step!r}; give a step such as 1200, counted from 1, or a range such"
                " as 1200-1210"
            )
        return range(first, last + 1)
