"""The settings of `python -m trainer ask`."""

import re
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class AskSettings:
    """Says what steps of a run read, which steps read a document, or if a certificate is right.

    Attributes:
        run: The folder of the run, or its --checkpoint.url.
        step: A step such as 1200, or several such as 1200-1210, whose instances are listed with
            their documents, tokens and masks.
        document: Documents to look for in all steps: each is an id, or the first 16 or more of its
            hex digits, or SOURCE:PLACE as `python -m pipeline inspect` shows it.
        text: Files whose whole text is a document to look for in all steps.
        spikes: Whether to list the instances of the steps whose gradients were not used.
        certificate: A certificate.json that forget has written about the run. Its claims are
            checked, the one about the weights by making steps of the run again. Start this with the
            number of ranks that trained the run (docs/forgetting.md).
        replay_from: The step of the checkpoint from which the steps for --certificate are made
            again; 0 is the beginning of the run. null takes the checkpoint that the certificate
            names, or the newest one before the last if that is gone.
        blame: A step whose gradient is to be explained. It is made again from the checkpoint before
            it, with and without some of its instances, and they are listed by what they add to the
            gradient (docs/forgetting.md).
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
    certificate: str | None = None
    replay_from: int | None = None
    blame: int | None = None
    format: Literal["table", "jsonl", "html"] = "table"
    output: str | None = None
    origins: bool = True
    data: list[str] = field(default_factory=list)
    cache_dir: str | None = None
    storage_options: str | None = None

    def __post_init__(self) -> None:
        questions = {
            "--step": self.step is not None,
            "--spikes": self.spikes,
            "--document and --text": bool(self.document or self.text),
            "--certificate": self.certificate is not None,
            "--blame": self.blame is not None,
        }
        asked = [flag for flag, is_asked in questions.items() if is_asked]
        if not asked:
            raise ValueError(
                "nothing is asked: give --step, --spikes, --document, --text, --certificate or"
                " --blame"
            )
        if len(asked) > 1:
            raise ValueError(
                f"{' and '.join(asked)} are {len(asked)} questions: ask one after the other"
            )
        if self.replay_from is not None and self.certificate is None:
            raise ValueError("--replay_from is for --certificate: give it too, or leave this out")
        if self.blame is not None and self.blame < 1:
            raise ValueError(f"blame is {self.blame}; give a step, counted from 1")
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
