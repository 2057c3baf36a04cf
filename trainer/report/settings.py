"""Settings of `python -m trainer report`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReportSettings:
    """Writes the curves of one run, or of several over one another, as a page of its own.

    Attributes:
        runs: Folders of runs. The curves of each have a colour.
        output: File of the page; null means report.html in the first run's folder.
    """

    runs: list[str]
    output: str | None = None
