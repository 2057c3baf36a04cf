"""Writes what an auditor needs to know about a forgetting: certificate.json and certificate.html.

Documents are named by hashes of their ids, so that the page does not publish what was forgotten.
Whoever has a document can compute its id (docs/format.md, section 1) and look for its hash.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.pages.render import render
from pipeline.shards.dataset import Dataset
from pipeline.storage.local import replace_file
from trainer.checkpoints.files import find_checkpoints, read_marker
from trainer.runs.json_files import to_json
from trainer.runs.run_folder import RunFolder
from trainer.stream.order.source import Mixture, WeightedDataset

CERTIFICATE = "certificate.json"
PAGE = "certificate.html"
_WORD_COUNTS = "word_counts.parquet"


def hash_id(document: int) -> str:
    """Returns the hash by which a certificate names a document.

    It is the sha256, in hex digits, of the first 16 hex digits of the document's id as text.

    Args:
        document: The first 64 bits of the document's id.
    """
    return hashlib.sha256(f"{document:016x}".encode()).hexdigest()


def describe_limits(
    mixture: Mixture, facts: Mapping[str, Any], num_near_duplicates: Mapping[str, int | None]
) -> list[str]:
    """Returns sentences that say what forgetting documents does not cover.

    Args:
        mixture: The datasets of the run.
        facts: The run.json of the run.
        num_near_duplicates: For each dataset, by its name, the number of documents that were found
            to be nearly the same as a forgotten one; None if that is not known. A dataset that was
            not searched is not in it.
    """
    likeness = [
        _limit_of_likeness(source, num_near_duplicates.get(source.name)) for source in mixture
    ]
    return [*known_limits(mixture, facts), *likeness]


def known_limits(mixture: Mixture, facts: Mapping[str, Any]) -> list[str]:
    """Returns the sentences of `describe_limits` without those about near-duplicates.

    These sentences follow from the run and its datasets alone; no documents have to be compared.

    Args:
        mixture: The datasets of the run.
        facts: The run.json of the run.
    """
    limits = [_limit_of_vocab(source.name, source.dataset) for source in mixture]
    base = facts.get("base_model", {}).get("name")
    if base:
        limits.append(f"The base model {base}, which the run began with, is not changed.")
    limits += [
        "Documents that are held out for validation were never trained on, but are still measured.",
        "Exact copies of a document have its id and are forgotten with it. A document of more than"
        " 8 MiB was cut into several, each with an id that has to be listed.",
        "The dataset, exports, fine-tuned models, uploads and copies that were made before, and the"
        " old run itself, still exist.",
        "left_out.txt in the folder of the new run lists the ids themselves.",
    ]
    return limits


def _limit_of_vocab(name: str, dataset: Dataset) -> str:
    """Returns the sentence of `describe_limits` about the vocabulary of one dataset.

    Args:
        name: What the sentence calls the dataset.
        dataset: The dataset.
    """
    if dataset.folder.exists(_WORD_COUNTS):
        return (
            f"The vocabulary of {name} stays as it is. It was learned from the texts of the"
            " dataset, the documents among them."
        )
    return f"The vocabulary of {name} stays as it is, wherever it was learned."


def _limit_of_likeness(source: WeightedDataset, num_found: int | None) -> str:
    """Returns the sentence of `describe_limits` about documents that are nearly the same.

    Args:
        source: The dataset.
        num_found: How many were found; None if they were not looked for, or could not be found.
    """
    not_forgotten = "They are not forgotten unless they are listed."
    if num_found is not None:
        return (
            f"{num_found:,} document(s) of {source.name} were found to be nearly the same as a"
            f" forgotten one, and are not listed. {not_forgotten}"
        )
    if source.dataset.manifest.settings.get("near_duplicates") is None:
        return (
            f"{source.name} was built without --near_duplicates, and nobody looked for documents"
            f" that are nearly the same as a forgotten one. {not_forgotten}"
        )
    return (
        f"{source.name} was built with --near_duplicates: of documents that are nearly the same it"
        " holds one. Documents below that likeness are not forgotten unless they are listed."
    )


def write_certificate(run: RunFolder, documents: Sequence[int], limits: Sequence[str]) -> Path:
    """Writes certificate.json and certificate.html into the folder of a run that `forget` made.

    Args:
        run: The new run, which is finished.
        documents: The forgotten documents, each as the first 64 bits of its id.
        limits: The result of `describe_limits`.

    Returns:
        The path of certificate.html.
    """
    facts = run.read_facts()
    finished, _ = find_checkpoints(run.checkpoints)
    newest = finished[-1]
    launch = facts["launches"][-1]
    certificate = {
        "documents_sha256": sorted(map(hash_id, documents)),
        "datasets": [
            {key: dataset[key] for key in ("name", "root_hash", "settings_hash")}
            for dataset in facts["datasets"]
        ],
        **{key: facts["forgot"][key] for key in facts["forgot"] if key != "list"},
        "new_run": facts["id"],
        "software": launch["software"],
        "git_commit": launch["git_commit"],
        "launches": [
            {"world_size": each["world_size"], "time": each["time"]} for each in facts["launches"]
        ],
        "checkpoint": newest.name,
        "files": read_marker(newest),
        "not_covered": list(limits),
    }
    # certificate.json is written last: `forget` takes it for the sign that both files are there.
    replace_file(run.path / PAGE, _render_page(certificate).encode())
    replace_file(run.path / CERTIFICATE, to_json(certificate))
    return run.path / PAGE


def _render_page(certificate: Mapping[str, Any]) -> str:
    """Returns the content of certificate.html.

    Args:
        certificate: The content of certificate.json.
    """
    first_step = certificate["first_step"]
    found = f"None of the first {certificate['steps_made']:,} steps of that run had read one."
    if first_step is not None:
        found = f"The first step of that run that had read one is {first_step:,}."
    beginning = certificate["from_checkpoint"] or "the beginning"
    summary = (
        f"The run {certificate['new_run']} is the run {certificate['old_run']} without"
        f" {len(certificate['documents_sha256']):,} document(s). {found} The new run goes on from"
        f" {beginning} of that run, before any of these documents was read, and none of its steps"
        " has read one."
    )
    how = {
        **certificate["software"],
        "git_commit": certificate["git_commit"],
        "launches": [
            f"{launch['time']}, {launch['world_size']} rank(s)"
            for launch in certificate["launches"]
        ],
        "instances_that_had_been_read": certificate["num_instances"],
    }
    return render(
        Path(__file__).with_name("certificate.html"),
        certificate=certificate,
        summary=summary,
        how=how,
        files=[
            (name, each["bytes"], each["sha256"]) for name, each in certificate["files"].items()
        ],
        datasets=[tuple(dataset.values()) for dataset in certificate["datasets"]],
        documents=[(document,) for document in certificate["documents_sha256"]],
    )
