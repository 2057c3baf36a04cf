"""How the C library keeps memory that was freed.

Blocks come and go by the megabyte, as requests and as columns. glibc gives back to the system what
several of them leave and asks for it again, and every new page costs a fault: a tenth of the
stream's CPU time where it was measured. Threads other than the first have arenas of their own,
given back whole whatever is asked for: requests of 8 MiB in threads cost 50 to 90 faults a MB and
twice the CPU of copying them, until all threads shared the one.
"""

import ctypes
import os

MMAP_BYTES, TRIM_BYTES = 32 * 2**20, 256 * 2**20
NUM_ARENAS = 1
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(MMAP_BYTES),
    "MALLOC_TRIM_THRESHOLD_": str(TRIM_BYTES),
    "MALLOC_ARENA_MAX": str(NUM_ARENAS),
}
"""The same for a process that is to be started."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> bool:
    """Lets this process keep freed pieces of up to MMAP_BYTES.

    It keeps TRIM_BYTES of them at the top of its one arena. To be called before there are threads:
    those that have an arena keep it.

    Returns:
        Whether it was done: not without glibc, nor where the environment says how.
    """
    if any(variable in os.environ for variable in ENVIRONMENT):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    given = (
        (_M_MMAP_THRESHOLD, MMAP_BYTES),
        (_M_TRIM_THRESHOLD, TRIM_BYTES),
        (_M_ARENA_MAX, NUM_ARENAS),
    )
    return all(mallopt(*each) for each in given)
