"""Writes English prose that every machine with Python has: docstrings, one document per module.

Files are parsed with `ast` and never imported: first the standard library, then the installed
packages, in the order of their names, until the text reaches the limit. Paragraphs are unwrapped;
doctests, tables and lists of parameters are left out.

    python scripts/docstring_corpus.py OUTPUT.jsonl --max_bytes 8000000
"""

import argparse
import ast
import json
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tqdm import tqdm

MIN_PARAGRAPH_CHARACTERS = 60
MIN_DOCUMENT_CHARACTERS = 400
MIN_LETTER_SHARE = 0.75
SKIPPED_FOLDERS = {"test", "tests", "site-packages", "dist-packages", "idle_test", "__pycache__"}
_NOT_PROSE = re.compile(
    r">>>|\.\. |^\s*[-=~^+|]{3}|^\s*[:@]\w+|[{}<>=\\]{2}|^\w+ *: *\w+|https?:|\[\d+\]", re.MULTILINE
)
_SENTENCE_END = (".", "!", "?", ":", ";")


def find_modules() -> Iterator[Path]:
    """Yields the Python files of the standard library, then those of the installed packages."""
    standard = Path(sysconfig.get_path("stdlib"))
    installed = Path(sysconfig.get_path("purelib"))
    for root in (standard, installed):
        for path in sorted(root.rglob("*.py")):
            if not SKIPPED_FOLDERS & set(path.relative_to(root).parts[:-1]):
                yield path


def read_prose(path: Path) -> list[str]:
    """Returns the paragraphs of prose in all docstrings of a module."""
    return [text for docstring in read_docstrings(path) for text in extract_prose(docstring)]


def read_docstrings(path: Path) -> Iterator[str]:
    """Yields the docstrings of a module, its classes and its functions.

    A file that cannot be parsed has none.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, OSError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def extract_prose(docstring: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring that are plain sentences, each as one line."""
    for paragraph in re.split(r"\n\s*\n", docstring):
        text = " ".join(paragraph.split())
        letters = sum(character.isalpha() or character == " " for character in text)
        is_long = len(text) >= MIN_PARAGRAPH_CHARACTERS and letters >= MIN_LETTER_SHARE * len(text)
        is_sentence = (
            text.isascii() and text.endswith(_SENTENCE_END) and not _NOT_PROSE.search(paragraph)
        )
        if is_long and is_sentence:
            yield text


def write_corpus(output: Path, max_bytes: int) -> tuple[int, int]:
    """Writes up to `max_bytes` of text; returns the number of documents and of their bytes."""
    documents = 0
    size = 0
    seen: set[str] = set()
    temporary = output.with_suffix(".partial")
    paths = list(find_modules())
    with (
        temporary.open("w", encoding="utf-8") as file,
        tqdm(total=max_bytes, desc="docstrings", unit="B", unit_scale=True, disable=None) as bar,
        ProcessPoolExecutor() as pool,
    ):
        for path, paragraphs in zip(paths, pool.map(read_prose, paths, chunksize=32), strict=True):
            new = [text for text in dict.fromkeys(paragraphs) if text not in seen]
            seen.update(new)
            text = "\n".join(new)
            if len(text) < MIN_DOCUMENT_CHARACTERS:
                continue
            if size + len(text) > max_bytes:
                pool.shutdown(cancel_futures=True)
                break
            file.write(json.dumps({"text": text, "module": path.name}) + "\n")
            documents += 1
            size += len(text)
            bar.update(len(text))
    temporary.replace(output)
    return documents, size


def main() -> int:
    """Parses the arguments and writes the corpus."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--max_bytes", type=int, default=8_000_000)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    documents, size = write_corpus(arguments.output, arguments.max_bytes)
    print(f"{arguments.output}: {documents:,} documents, {size:,} bytes of docstrings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
