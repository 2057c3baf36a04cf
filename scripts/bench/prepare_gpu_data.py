"""Packs what a bare machine with a GPU lacks: real shards, and the wheels that its Python is without.

    python -m scripts.bench.prepare_gpu_data --text $BEAMBERT_TEST_DATA/data

FOLDER of --text holds wiki_en/, books_en/ and bert_vocab/. Makes, in gpu-pack/ (which git ignores):

    bench/       6 files of wiki_en at 128 and 512 tokens, one pass: what `pretrain_gpu` and
    `stability_gpu` read run/         wiki_en and books_en at 128 tokens, one pass: what
    `pretrain_run_gpu` trains on wheels/      DeepSpeed and what torch, numpy, pyarrow, tokenizers
    and transformers do not bring with them commit       of the code

Run again it does what is missing. docs/gpu.md says how they travel and what reads them.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from scripts.checkout import ROOT, commit

DATASETS = {
    "bench": (("wiki_en/wiki_en_0[0-5].txt",), ("128", "512")),
    "run": (("wiki_en/*.txt", "books_en/*.txt"), ("128",)),
}
MOST_MEGABYTES = {"bench": 40.0, "run": 45.0}
WHEELS = (
    "hjson", "pydantic", "pydantic_core", "annotated-types", "typing-inspection", "zstandard", "isal", "tqdm",
    "webdataset", "braceexpand",
)  # fmt: skip
PLATFORMS = (
    "manylinux_2_28",
    "manylinux_2_26",
    "manylinux_2_17",
    "manylinux2014",
    "manylinux_2_5",
    "manylinux1",
)


def main() -> None:
    """Packs."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--text", type=Path, required=True, help="folder with wiki_en, books_en and bert_vocab"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "gpu-pack")
    parser.add_argument(
        "--only", nargs="+", choices=(*DATASETS, "wheels"), default=[*DATASETS, "wheels"]
    )
    parser.add_argument("--python_version", default="3.12", help="of the machine with the GPU")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "commit").write_text(f"{commit()}\n")
    for name in options.only:
        if name == "wheels":
            pack_wheels(options.output / name, options.python_version)
        else:
            build_dataset(options.output / name, options.text, *DATASETS[name])
        print(f"{options.output / name}: {megabytes(options.output / name):.1f} MB")


def build_dataset(
    output: Path, text: Path, inputs: tuple[str, ...], seq_lens: tuple[str, ...]
) -> None:
    """Shards of one pass, their tokens aside.

    Raises:
        ValueError: They are larger than a machine is sent.
        CalledProcessError: The build failed; it has said why.
    """
    vocab = text / "bert_vocab" / "bert-base-uncased-vocab.txt"
    arguments = [
        "--input",
        *(str(text / f"{each}.zst") for each in inputs),
        "--vocab",
        str(vocab),
        "--passes",
        "1",
    ]
    tokens = output.with_name(f"{output.name}-tokens")
    places = ["--output", str(output), "--tokens", str(tokens), "--seq_lens", *seq_lens]
    subprocess.run(
        [sys.executable, "-m", "pipeline", "build", *arguments, *places], cwd=ROOT, check=True
    )
    if megabytes(output) > MOST_MEGABYTES[output.name]:
        raise ValueError(
            f"{output} has {megabytes(output):.1f} MB, more than {MOST_MEGABYTES[output.name]}: give it less text"
        )


def pack_wheels(folder: Path, python_version: str) -> None:
    """DeepSpeed, built without its compiled operations, and the others as constraints.txt names them."""
    folder.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if not list(folder.glob("deepspeed-*.whl")):
        command = [*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), pinned("deepspeed")]
        subprocess.run(command, check=True)
    platforms = [part for each in PLATFORMS for part in ("--platform", f"{each}_x86_64")]
    target = ["--python-version", python_version, "--implementation", "cp", *platforms]
    fetched = ["--no-deps", "--only-binary=:all:", "--dest", str(folder), *map(pinned, WHEELS)]
    subprocess.run([*pip, "download", *target, *fetched], check=True)


def pinned(name: str) -> str:
    """NAME==VERSION of constraints.txt.

    Raises:
        ValueError: It is not there.
    """
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = next(
        (line for line in lines if re.match(rf"{re.escape(name)}==", line, re.IGNORECASE)), None
    )
    if found is None:
        raise ValueError(f"constraints.txt names no version of {name}")
    return found


def megabytes(folder: Path) -> float:
    """What a folder holds."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    main()
