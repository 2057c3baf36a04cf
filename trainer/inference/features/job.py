"""`python -m trainer features`: texts of files to parts of features.

OUTPUT/started.json     settings and the model's hash: what the parts there are made with
       part-00000.*     --texts_per_part texts each (trainer.inference.features.parts)
       features.json    written last: only where it is, the features are complete
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from tqdm import tqdm

from pipeline.interrupts import INTERRUPTED, Interrupted
from pipeline.storage.folder import Folder
from pipeline.storage.local import find_temporaries
from trainer.conversion.initial_weights import hash_state
from trainer.inference.features.extract import EncodedText, FeatureExtractor
from trainer.inference.features.parts import Layout, read_part_facts, write_part
from trainer.inference.features.read import InputFile, InputText, find_files, iterate_texts
from trainer.inference.features.settings import FeaturesSettings
from trainer.inference.open_model import OpenedModel, open_model
from trainer.process.ranks import choose_device
from trainer.runs.continuing import Continuable
from trainer.runs.json_files import parse_object, to_json

FEATURES = Continuable(
    kind="a set of features", marker="started.json", free=("model", "output", "device")
)
FINISHED = "features.json"


class PartCounter:
    """Counts a part's texts while they pass on their way to the model."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._counts = dict.fromkeys(
            ("texts", "tokens", "empty_texts", "long_texts", "windows", "unknown_words"), 0
        )

    def digest(self, texts: Iterator[InputText]) -> Iterator[InputText]:
        """Passes texts on and hashes what they are made of."""
        for text in texts:
            content = [text.text, text.words, text.name, text.line]
            self._digest.update(json.dumps(content).encode() + b"\n")
            self._counts["texts"] += 1
            yield text

    def count(self, texts: Iterator[EncodedText]) -> Iterator[EncodedText]:
        """Passes encoded texts on and counts what became of them."""
        for text in texts:
            self._counts["tokens"] += len(text.ids)
            self._counts["empty_texts"] += not text.ids
            self._counts["long_texts"] += text.num_windows > 1
            self._counts["windows"] += text.num_windows
            self._counts["unknown_words"] += text.unknown_words
            yield text

    def facts(self) -> dict[str, Any]:
        """Counts and hash of what has passed."""
        return {**self._counts, "texts_sha256": self._digest.hexdigest()}


def write_features(settings: FeaturesSettings) -> dict[str, Any]:
    """Writes the features of the input's texts, but for parts that an earlier start finished.

    Returns:
        Content of features.json.

    Raises:
        FileNotFoundError: No model or no input.
        Interrupted: The process was told to end; says how many parts are kept.
        ValueError: The output folder holds something else or features of other settings, the input
            has changed since its first parts were made, or a text cannot be read.
    """
    files = find_files(settings.input)
    opened = open_model(settings.model)
    extractor = FeatureExtractor(
        opened,
        layers=settings.layers,
        combine=settings.combine,
        rows=settings.rows,
        seq_len=settings.seq_len,
        micro_tokens=settings.micro_tokens,
        device=choose_device(settings.device),
    )
    plan = describe_plan(settings, opened)
    output = Folder(settings.output)
    finished = _start(output, plan)
    if finished:
        return finished
    layout = Layout.of(settings, extractor.columns, extractor.width)
    with tqdm(
        total=sum(file.size for file in files),
        unit="B",
        unit_scale=True,
        mininterval=1.0,
        disable=None,
    ) as progress:
        parts = _write_or_say_how_many(
            output, _write_parts(files, settings, extractor, layout, progress)
        )
    return _finish(output, plan, extractor, layout, parts)


def describe_plan(settings: FeaturesSettings, opened: OpenedModel) -> dict[str, Any]:
    """Content of started.json: what has to be the same for a command to continue the output."""
    return {
        "settings": FEATURES.bound_settings(settings),
        "model_sha256": hash_state(opened.state),
        "hidden_size": opened.config.hidden_size,
    }


def _start(output: Folder, plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Claims the folder; features.json where it is complete already."""
    found = output.list()
    FEATURES.refuse_foreign(output.url, found)
    if found:
        then = _read_json(output, FEATURES.marker)
        old, new = (
            {**facts.get("settings", {}), "model_sha256": facts.get("model_sha256")}
            for facts in (then, plan)
        )
        FEATURES.check_settings(output.url, old, new)
        output.remove(find_temporaries(found))
    else:
        output.write(FEATURES.marker, to_json(plan))
    return _read_json(output, FINISHED) if FINISHED in found else None


def _read_json(output: Folder, name: str) -> dict[str, Any]:
    return parse_object(
        output.read(name), output.locate(name), "restore it, or give another --output"
    )


def _write_or_say_how_many(output: Folder, parts: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    try:
        return list(parts)
    except KeyboardInterrupt as error:
        names = output.list()
        kept = {name.removesuffix(".parquet") for name in names if name.endswith(".parquet")}
        half = [
            name
            for name in names
            if name.endswith(".npy") and name.removesuffix(".npy") not in kept
        ]
        output.remove(half)
        parts_are = "1 part is" if len(kept) == 1 else f"{len(kept)} parts are"
        raise Interrupted(f"{INTERRUPTED}; {parts_are} kept, the same command continues") from error


def _write_parts(
    files: list[InputFile],
    settings: FeaturesSettings,
    extractor: FeatureExtractor,
    layout: Layout,
    progress: Any,
) -> Iterator[dict[str, Any]]:
    """What each part holds, once it is there."""

    def report(num_bytes: int) -> None:
        progress.update(num_bytes - progress.n)

    output = Folder(settings.output)
    texts = iterate_texts(files, settings, report)
    for first in texts:  # each turn is a part
        number = first.number // settings.texts_per_part
        name = f"part-{number:05d}"
        counter = PartCounter()
        digested = counter.digest(chain([first], islice(texts, settings.texts_per_part - 1)))
        if output.exists(f"{name}.parquet"):
            facts = read_part_facts(output, f"{name}.parquet")
            _check_same_texts(digested, counter, facts, f"{settings.output}/{name}.parquet")
        else:
            rows = extractor.iterate(counter.count(map(extractor.encode, digested)))
            facts = write_part(output, name, layout, rows, counter.facts)
        yield {"name": name, **facts}


def _check_same_texts(
    digested: Iterator[InputText], counter: PartCounter, facts: Mapping[str, Any], where: str
) -> None:
    for _ in digested:
        pass
    if counter.facts()["texts_sha256"] != facts["texts_sha256"]:
        raise ValueError(
            f"{where} was made of other texts than the input has now; give another --output"
        )


def _finish(
    output: Folder,
    plan: Mapping[str, Any],
    extractor: FeatureExtractor,
    layout: Layout,
    parts: list[dict[str, Any]],
) -> dict[str, Any]:
    if not parts:
        raise ValueError("the input holds no text; give files that hold one a line")
    names = [name for name, value in parts[0].items() if isinstance(value, int)]
    finished = {
        **plan,
        "layers": list(extractor.layers),
        "columns": list(layout.columns),
        "width": layout.width,
        **{name: sum(part[name] for part in parts) for name in names},
        "parts": parts,
    }
    output.write(FINISHED, to_json(finished))
    return finished


def describe_features(output: str, finished: Mapping[str, Any]) -> str:
    """A few words for people."""
    words = (
        f", {finished['unknown_words']:,} words without pieces as [UNK]"
        if finished["unknown_words"]
        else ""
    )
    return (
        f"{output}: {finished['rows']:,} rows of {', '.join(finished['columns'])} ({finished['width']} values) from "
        f"{finished['texts']:,} texts, {finished['tokens']:,} tokens; {finished['long_texts']:,} texts longer than a "
        f"window, {finished['empty_texts']:,} empty{words}"
    )
