"""What to install where a package is missing: the extras of pyproject.toml, by import names."""

from pipeline.storage.driver_errors import causes

EXTRA_OF = {
    **dict.fromkeys(("apache_beam", "docstring_parser", "jsonschema", "pandas"), "pipeline"),
    **dict.fromkeys(("torch", "deepspeed", "safetensors"), "trainer"),
    **dict.fromkeys(("tensorboard", "isal"), "trainer"),
    "google_crc32c": "tfrecord",
}
"""Import name of a package -> the extra that brings it."""

_CORE = """
numpy pyarrow fsspec s3fs gcsfs tokenizers sentencex zstandard yaml tqdm fastwarc
resiliparse brotli jinja2 py3langid huggingface_hub webdataset
"""
CORE = tuple(_CORE.split())
"""Import names of what every extra brings."""


def describe_missing(error: BaseException | None) -> str | None:
    """What to run for a package of ours that could not be imported; None where it is none of them.

    fsspec raises an error of its own after that of its driver, so causes are looked at too.
    """
    for each in causes(error):
        package = (getattr(each, "name", None) or "").partition(".")[0]
        if isinstance(each, ModuleNotFoundError) and (package in EXTRA_OF or package in CORE):
            install = f"pip install -e '.[{EXTRA_OF.get(package, 'pipeline,trainer')}]'"
            found = f"the package {package} is not installed here"
            return f"{found}: in the checkout run `. scripts/environment.sh`, or {install}"
    return None
