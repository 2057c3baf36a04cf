"""What to install where a package is missing: the extras of pyproject.toml, by the names that code imports."""

EXTRA_OF = {
    "apache_beam": "pipeline", "torch": "trainer", "deepspeed": "trainer", "safetensors": "trainer",
    "tensorboard": "trainer", "isal": "trainer", "google_crc32c": "tfrecord", "webdataset": "trainer",
    "onnxscript": "onnx", "onnxruntime": "onnx", "transformers": "onnx",
}  # fmt: skip
"""Import name of a package -> the extra that brings it."""

CORE = (
    "numpy", "pyarrow", "fsspec", "s3fs", "gcsfs", "tokenizers", "sentencex", "zstandard", "yaml", "tqdm",
    "mwparserfromhell", "fastwarc", "resiliparse", "jinja2", "py3langid",
    "huggingface_hub",
)  # fmt: skip
"""Import names of what every extra brings."""


def describe_missing(error: BaseException | None) -> str | None:
    """What to run for a package of ours that could not be imported; None where it is none of them.

    fsspec raises an error of its own after that of its driver, so causes are looked at too.
    """
    while error is not None:
        package = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and (package in EXTRA_OF or package in CORE):
            install = f"pip install -e '.[{EXTRA_OF.get(package, 'pipeline,trainer')}]'"
            return (
                f"the package {package} is not installed here: in the checkout run `. scripts/environment.sh`, or "
                f"{install}"
            )
        error = error.__cause__ or error.__context__
    return None
