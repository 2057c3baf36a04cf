"""A gate in workers: a process that is about to write a shard says so, and waits for the test.

So a worker is certainly killed in the middle of one.
"""

import time
from pathlib import Path

SECONDS = 600  # not a claim: only what hangs takes as long

# Found first by every worker process; each file is synced before it gets its name.
SITECUSTOMIZE = """
import os, time
from pathlib import Path
sync, gate = os.fsync, Path(__file__).with_name("gate")
def sync_or_wait(file):
    if "shard-" in Path(os.readlink(f"/proc/self/fd/{file}")).name:
        Path(gate.parent, f"waits-{os.getpid()}").touch()
        while gate.exists():
            time.sleep(0.05)
    sync(file)
os.fsync = sync_or_wait
"""


class Gate:
    """Closed while a folder has the file `gate`."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.joinpath("sitecustomize.py").write_text(SITECUSTOMIZE)

    def close(self):
        for path in self.folder.glob("waits-*"):
            path.unlink()
        (self.folder / "gate").touch()

    def open(self):
        (self.folder / "gate").unlink()

    def waiting(self):
        """Process ids of those that wait."""
        return sorted(int(path.name.removeprefix("waits-")) for path in self.folder.glob("waits-*"))

    def wait_for(self, num_processes, process):
        """Until so many processes wait, or the command that they work for has ended; their ids."""
        began = time.monotonic()
        while len(self.waiting()) < num_processes and process.poll() is None:
            found = f"{len(self.waiting())} processes write shards, expected {num_processes}"
            assert time.monotonic() - began < SECONDS, found
            time.sleep(0.05)
        return self.waiting()
