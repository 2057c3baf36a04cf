"""Builds the stand-in for CUDA for the installed torch, once, and prints its folder: `scripts/fake-cuda` calls this.

answers.c has the functions whose answer somebody reads. Every other name of CUDA's runtime and
driver, cuBLAS and NCCL that torch's libraries want is made here, from their tables of symbols: it
does nothing and returns 0, success.
"""

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ANSWERS = Path(__file__).with_name("answers.c")
# Not cuDNN, cuSPARSE and their like: the real ones load without a GPU, and training calls none of
# them.
STOOD_IN_FOR = re.compile(r"__cuda|cuda[A-Z]|cu[A-Z]|cublas|nccl")


def main() -> None:
    """Builds."""
    try:
        print(build())
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"fake-cuda: {error}") from error


def build(cache: Path | None = None) -> Path:
    """The folder with libfake_cuda.so and, under the driver's name, libcuda.so.1.

    Args:
        cache: Where folders are kept, one for each torch and each state of this program.
    """
    torch, headers = find_package("torch"), find_headers()
    sources = ANSWERS.read_bytes() + Path(__file__).read_bytes()
    key = hashlib.blake2b(
        f"{version('torch')} {torch}".encode() + sources, digest_size=8
    ).hexdigest()
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "beambert"
    folder = cache / f"fake-cuda-{key}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            compile_library(Path(made) / "whole", torch, headers)
            try:
                (Path(made) / "whole").rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
    return folder


def compile_library(folder: Path, torch: Path, headers: list[Path]) -> None:
    """Compiles answers.c, and for every name that it leaves open a label of one function."""
    folder.mkdir()
    flags = ["-fPIC", "-O1", "-w", *(f"-I{each}" for each in headers)]
    subprocess.run(["cc", "-c", *flags, str(ANSWERS), "-o", str(folder / "answers.o")], check=True)
    wanted = set().union(*(symbols(path, "--undefined-only") for path in torch.glob("lib/lib*.so")))
    # Triton compiles this file when it first needs it.
    driver = (find_package("triton") / "backends/nvidia/driver.c").read_text()
    wanted |= set(re.findall(r"\b(cu[A-Z]\w*)\(", driver))
    open_names = sorted(
        set(filter(STOOD_IN_FOR.match, wanted)) - symbols(folder / "answers.o", "--defined-only")
    )
    labels = "".join(f"long {name}(void) {{ return 0; }}\n" for name in open_names)
    (folder / "stubs.c").write_text(labels)
    library = folder / "libfake_cuda.so"
    parts = [str(folder / "stubs.c"), str(folder / "answers.o")]
    subprocess.run(
        ["cc", "-shared", *flags, *parts, "-o", str(library), "-ldl", "-lpthread"], check=True
    )
    (folder / "libcuda.so.1").symlink_to(library.name)


def symbols(path: Path, which: str) -> set[str]:
    """Names in a library's table of symbols, versions cut off."""
    dynamic = ["--dynamic"] if path.suffix == ".so" else []
    done = subprocess.run(
        ["nm", *dynamic, which, str(path)], capture_output=True, text=True, check=True
    )
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if line.split()}


def find_package(name: str) -> Path:
    """Folder of an installed package, which is not imported."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"{name} is not installed for {sys.executable}")
    return Path(found.submodule_search_locations[0])


def find_headers() -> list[Path]:
    """CUDA's headers, which come with the CUDA build of torch; a part of them, crt/, only with Triton.

    Raises:
        ValueError: torch is another build.
    """
    if (find_package("torch") / "lib/libtorch_cuda.so").is_file() and importlib.util.find_spec(
        "nvidia"
    ):
        folders = {
            each.parent for each in find_package("nvidia").glob("*/include/cuda_runtime_api.h")
        }
        return [*sorted(folders), find_package("triton") / "backends/nvidia/include"]
    raise ValueError(
        f"torch {version('torch')} has no CUDA in it, or no CUDA headers lie beside it; "
        "install the CUDA build of torch, whose packages bring both"
    )


if __name__ == "__main__":
    main()
