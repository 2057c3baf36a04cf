"""Peak memory of this process alone, by /proc: getrusage counts what it held before exec too.

Imports the stdlib only.
"""

from pathlib import Path

MEGABYTE = 2**20


def peak_megabytes() -> float:
    """Most memory that this program has had, or has had since `reset_peak`."""
    return (
        int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
        * 1024
        / MEGABYTE
    )


def reset_peak() -> None:
    """From here on the peak is what is held now, or more: an earlier test may have held much."""
    Path("/proc/self/clear_refs").write_text("5")
