"""What this process has asked of the stand-in for CUDA so far."""

import ctypes

NAMES = ("launches", "device_copies", "host_copies", "pageable_copies", "read_backs", "waits")


def counts() -> dict[str, int]:
    """The counters of answers.c by name.

    Raises:
        ValueError: The stand-in is not loaded.
    """
    library = ctypes.CDLL(None)
    try:
        return {name: ctypes.c_long.in_dll(library, f"fake_cuda_{name}").value for name in NAMES}
    except ValueError as error:
        raise ValueError(
            "this process has no stand-in for CUDA; start it with scripts/fake-cuda"
        ) from error
