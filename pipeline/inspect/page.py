"""report.json as one page: no script, no other file, nothing that the page's own policy would let it load.

`render_page` is a pure function of the report; what comes from the data goes through
`pipeline.pages.text.escape`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.inspect.cards import histogram
from pipeline.inspect.charts import bar_rows
from pipeline.inspect.group import anchor, group_section, title_of
from pipeline.inspect.measure import MASK_KINDS
from pipeline.inspect.mixture import find_unused, mixture_cards
from pipeline.inspect.summary import STAGES
from pipeline.inspect.validation import validation_card
from pipeline.pages.cards import card, format_bytes, pairs, small, whole_page
from pipeline.pages.text import escape, short_number
from pipeline.storage.folder import Folder

REPORT_PAGE = "report.html"
LIKELY = 0.001
"""Chance below which a test is called failed: a sound dataset with a few groups practically never is."""


def render_page(report: Mapping[str, Any]) -> str:
    """The whole page; the order of keys in the report changes nothing."""
    report = json.loads(json.dumps(report, sort_keys=True))
    dataset, build = report["dataset"], report.get("build", {})
    groups = dataset["groups"]
    links = [("documents", "Documents"), *((anchor(group), title_of(group)) for group in groups)]
    links += [("sources", "Sources"), ("build", "Build and settings")]
    nav = "".join(f'<a href="#{escape(anchor)}">{escape(title)}</a>' for anchor, title in links)
    parts = [
        f"<h1>Dataset {escape(dataset['name'])}</h1>",
        f'<p class="soft">root hash <code>{escape(dataset["root_hash"])}</code></p>',
        f"<nav>{nav}</nav>{_tiles(dataset)}",
        f'<div class="card"><h3>Checks</h3><ul class="checks">{"".join(_checks(dataset))}</ul></div>',
        _documents(dataset),
        *map(group_section, groups),
        _sources(dataset["sources"], dataset["mixture"], dataset["validation"]),
        _build(dataset, build),
        "<footer>Every number stands in report.json beside this page. Samples are spread evenly over the dataset;"
        " what was sampled is said where it is shown.</footer>",
    ]
    body = "\n".join(parts)
    return whole_page(f"{dataset['name']} — dataset report", body)


def write_page(report: Mapping[str, Any], folder: Folder, name: str) -> None:
    """Writes the page of a report."""
    folder.write(name, render_page(report).encode())


def _tiles(dataset: Mapping[str, Any]) -> str:
    counters, groups = dataset["counters"], dataset["groups"]
    tiles = [
        (f"{counters['documents']:,}", "distinct documents"),
        (format_bytes(counters["cleaned_bytes"]), "cleaned text"),
        (short_number(counters["distinct_tokens"]), "tokens of text"),
        (f"{sum(group['instances'] for group in groups):,}", "instances"),
        (
            format_bytes(dataset["bytes"]),
            f"in {sum(group['shards'] for group in groups):,} shard(s)",
        ),
        (f"{dataset['vocab_size']:,}", "vocabulary entries"),
    ]
    cards = "".join(
        f'<div class="card tile"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in tiles
    )
    return f'<div class="tiles">{cards}</div>'


def _checks(dataset: Mapping[str, Any]) -> list[str]:
    lines = []
    for group in dataset["groups"]:
        title, kinds, positions = title_of(group), group["masks"], group["mask_positions"]
        shares = " / ".join(f"{100 * kinds['shares'][kind]:.1f}" for kind in MASK_KINDS)
        lines.append(_check(kinds["p"], f"{title}: masks against 80 / 10 / 10", f"{shares} %"))
        lines.append(_check(positions["p"], f"{title}: masks evenly over positions", ""))
    lines += [_check_read(dataset["counters"]), _check_sources(dataset["mixture"])]
    lines += _check_validation(dataset["validation"])
    lines.append(_line(dataset["coverage"]["is_whole"], "Coverage", dataset["coverage"]["said"]))
    rate = dataset["unknown_rate"]
    lines.append(_line(rate < 0.01, "Unknown pieces", f"{rate:.3%} of all tokens"))
    return lines


def _check_read(counters: Mapping[str, int]) -> str:
    read, kept = counters.get("documents_read", 0), counters["documents"]
    dropped = sum(count for name, count in counters.items() if name.startswith("dropped_"))
    said = f"{read:,} read; {kept:,} kept, {dropped:,} dropped"
    cut = counters.get("documents_cut", 0)
    return _line(
        read <= kept + dropped,
        "Documents read are kept or dropped",
        said + (f"; {cut:,} cut" if cut else ""),
    )


def _check_sources(mixture: Sequence[Mapping[str, Any]]) -> str:
    unused = find_unused(mixture)
    return _line(
        not unused, "Every source is trained on", "; ".join(unused) or f"{len(mixture)} source(s)"
    )


def _check_validation(validation: Mapping[str, Any] | None) -> list[str]:
    if validation is None:
        return []
    said = "; ".join([f"it {validation['said']}", *validation["warnings"]])
    return [_line(not validation["warnings"], "Validation split", said)]


def _check(p: float | None, what: str, found: str) -> str:
    tested = (
        "whole words are masked together, not tested" if p is None else f"chi-square p = {p:.2g}"
    )
    return _line(p is None or p >= LIKELY, what, f"{found}; {tested}" if found else tested)


def _line(holds: bool, what: str, found: str) -> str:
    kind, mark = ("good", "✓") if holds else ("warn", "!")
    said = "" if holds else " — worth a look"
    return (
        f'<li><span class="mark {kind}">{mark}</span><span><b>{escape(what)}</b>'
        f' <span class="soft">{escape(found)}{said}</span></span></li>'
    )


def _documents(dataset: Mapping[str, Any]) -> str:
    counters = dataset["counters"]
    dropped = {name: count for name, count in counters.items() if name.startswith("dropped_")}
    others = [name for name in ("documents_listed", "documents_cut") if name in counters]
    names = ["documents_read", *sorted(dropped), *others]
    rows = [
        (name.replace("_", " "), counters[name], f"{counters[name]:,}")
        for name in [*names, "documents"]
    ]
    rows[-1] = ("distinct documents kept", *rows[-1][1:])
    totals = {
        "sentences": f"{counters['sentences']:,}",
        "tokens": f"{counters['tokens']:,}",
        "unknown tokens": f"{counters.get('unknown_tokens', 0):,} ({dataset['unknown_rate']:.3%})",
        "tokens a document": f"{counters['distinct_tokens'] / max(1, counters['documents']):,.0f}",
        "bytes a token": f"{counters['cleaned_bytes'] / max(1, counters['distinct_tokens']):.2f}",
    }
    cards = [
        card("From documents read to documents kept", bar_rows(rows)),
        card("Text", pairs(totals)),
    ]
    return (
        f'<section id="documents"><h2>Documents</h2><div class="grid">{"".join(cards)}</div>'
        f"{_lengths(dataset)}</section>"
    )


def _lengths(dataset: Mapping[str, Any]) -> str:
    measured = dataset["documents"]
    if measured is None:
        return '<p class="soft">Lengths were not measured: the encoded documents (tokens/) are not there any more.</p>'
    sample = measured["sample"]
    seen = f"sampled: {sample['documents']:,} of {sample['of_documents']:,} documents"
    sentences = f"sampled: {measured['sampled_sentences']:,} sentences"
    cards = [
        histogram("Tokens of a document", measured["document_tokens"], "tokens, up to", seen),
        histogram("Tokens of a sentence", measured["sentence_tokens"], "tokens, up to", sentences),
    ]
    return f'<div class="grid">{"".join(cards)}</div>{_dropped(measured["dropped_examples"])}'


def _dropped(examples: Sequence[Mapping[str, str]]) -> str:
    if not examples:
        return ""
    rows = "".join(
        f"<tr><td>{escape(each['reason'].replace('_', ' '))}</td><td><code>{escape(each['where'])}</code></td>"
        f'<td dir="auto">{escape(each["text"])}</td></tr>'
        for each in examples
    )
    table = f'<table class="stacked"><tr><th>reason</th><th>where</th><th>begins</th></tr>{rows}</table>'
    return card("Some of the dropped documents", f'<div class="scroll">{table}</div>')


def _sources(
    sources: Mapping[str, Any] | None,
    mixture: Sequence[Mapping[str, Any]],
    validation: Mapping[str, Any] | None,
) -> str:
    files = (
        '<p class="soft">The dataset has no table of sources.</p>'
        if sources is None
        else _files(sources)
    )
    return f'<section id="sources"><h2>Sources</h2>{mixture_cards(mixture)}{validation_card(validation)}{files}</section>'


def _files(sources: Mapping[str, Any]) -> str:
    shown = sources["largest"]
    more = [name for name in (shown[0] if shown else {}) if name not in ("url", "bytes")]
    head = "".join(f"<th>{escape(name)}</th>" for name in more)
    rows = "".join(
        f"<tr><td><code>{escape(row['url'])}</code></td>"
        + "".join(f"<td>{escape('' if row[name] is None else row[name])}</td>" for name in more)
        + f'<td class="n">{format_bytes(row["bytes"])}</td></tr>'
        for row in shown
    )
    said = f"{sources['files']:,} file(s), {format_bytes(sources['bytes'])} as stored"
    said += f"; the {len(shown)} largest:" if len(shown) < sources["files"] else ":"
    table = f'<table><tr><th>file</th>{head}<th class="n">size</th></tr>{rows}</table>'
    return card("Files", f'<p>{said}</p><div class="scroll">{table}</div>')


def _build(dataset: Mapping[str, Any], build: Mapping[str, Any]) -> str:
    cards = []
    if seconds := build.get("seconds"):
        rows = [(stage, seconds[stage], f"{seconds[stage]:,.1f} s") for stage in STAGES]
        machine = ", ".join(f"{name} {value}" for name, value in build.get("machine", {}).items())
        cards.append(card("Time of the run that finished it", bar_rows(rows) + small(machine)))
    hashes = {name: dataset[name] for name in ("root_hash", "settings_hash", "vocab_sha256")}
    versions = {"format": dataset["format_version"]} | dict(dataset["software"])
    cards.append(card("Versions", pairs(versions)))
    deciding = {
        name: value for name, value in dataset["settings"].items() if name != "sources"
    }  # a table shows them
    content = [card("Settings that decide the content", pairs(deciding))]
    others = {
        name: value
        for name, value in build.get("settings", {}).items()
        if name not in dataset["settings"]
    }
    content += [card("Other settings of the build", pairs(others))] if others else []
    return (
        f'<section id="build"><h2>Build and settings</h2><div class="grid">{"".join(cards)}</div>'
        f'<div class="grid">{card("Hashes", pairs(hashes))}</div><div class="grid">{"".join(content)}</div></section>'
    )
