"""The part of the report page on one split and length: totals, charts, frequent pieces, sample instances."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.inspect.cards import histogram
from pipeline.inspect.charts import bar_rows, column_chart
from pipeline.inspect.measure import MASK_KINDS
from pipeline.inspect.show import LABELS
from pipeline.pages.cards import card, pairs, small
from pipeline.pages.text import escape
from tokenizer.vocab import CONTINUATION, MASK

_KIND_NAMES = {"mask": MASK, "kept": "the word itself", "random": "a random piece"}


def anchor(group: Mapping[str, Any]) -> str:
    """Where the part on a split and length is found in the page."""
    return f"{group['split']}-{group['seq_len']}"


def title_of(group: Mapping[str, Any]) -> str:
    """Name of a split and length."""
    return f"{str(group['split']).capitalize()}, {group['seq_len']} tokens"


def group_section(group: Mapping[str, Any]) -> str:
    """Everything on one split and length."""
    facts = {
        "instances": f"{group['instances']:,} in {group['passes']} pass(es), {group['shards']} shard(s)",
        "tokens": f"{group['tokens']:,}",
        "mean length": f"{group['mean_length']} of {group['seq_len']}",
        "fill": f"{group['fill']:.1%}",
        "masked": f"{group['masked']:,} ({group['masked_share']:.2%} of tokens)",
        "pieces seen": f"{group['pieces']['seen']:,} entries of the vocabulary, in the sample",
        "sampled": f"{group['sample']['blocks']:,} of {group['sample']['of_blocks']:,} blocks,"
        f" {group['sample']['instances']:,} instances",
    }
    cards = [
        card("Totals", pairs(facts)),
        _lengths_card(group),
        _kinds_card(group),
        _positions_card(group),
    ]
    instances = "".join(map(_instance, group["sample_instances"]))
    return (
        f'<section id="{escape(anchor(group))}"><h2>{escape(title_of(group))}</h2>'
        f'<div class="grid">{"".join(cards)}</div><div class="grid">{_pieces_card(group)}</div>'
        f'<div class="card"><h3>Sample instances</h3>{_legend()}</div><div class="grid">{instances}</div></section>'
    )


def _lengths_card(group: Mapping[str, Any]) -> str:
    return histogram(
        "Tokens of an instance", group["lengths"], "tokens, up to", "with [CLS] and [SEP], sampled"
    )


def _kinds_card(group: Mapping[str, Any]) -> str:
    masks = group["masks"]
    rows = [
        (
            _KIND_NAMES[kind],
            masks["shares"][kind],
            f"{masks['shares'][kind]:.2%} ({masks['counts'][kind]:,})",
        )
        for kind in MASK_KINDS
    ]
    test = f"against 80 / 10 / 10: chi-square {masks['chi_square']:.2f}, p = {masks['p']:.2g}"
    return card(
        "What the model sees at masked positions",
        bar_rows(rows, most=1) + small(test) + _labels(group),
    )


def _labels(group: Mapping[str, Any]) -> str:
    """Next sentence prediction's two labels; why they are not equal is in docs/parity.md, section 5."""
    counts = {True: group["random_next"], False: group["instances"] - group["random_next"]}
    shares = {True: group["random_next_share"], False: 1 - group["random_next_share"]}
    names = {False: "B follows A", True: "B is random"}
    rows = [
        (names[label], shares[label], f"{shares[label]:.2%} ({counts[label]:,})")
        for label in (False, True)
    ]
    return f"<h3>Next sentence prediction</h3>{bar_rows(rows, most=1)}{small('counted over all instances')}"


def _positions_card(group: Mapping[str, Any]) -> str:
    spread = group["mask_positions"]
    values = [share or 0.0 for share in spread["shares"]]
    notes = [
        f"up to position {edge}: {value:.2%} masked, {expected or 0:.2%} expected"
        for edge, value, expected in zip(spread["up_to"], values, spread["expected"], strict=True)
    ]
    labels = [str(edge) for edge in spread["up_to"]]
    title = "Share masked by position"
    chart = column_chart(
        title, labels, values, notes, "position, up to", line=spread["expected"], as_percent=True
    )
    test = f"chi-square {spread['chi_square']:.1f} over {spread['degrees']} degrees"
    test += (
        ", not tested: whole words go together"
        if spread["p"] is None
        else f", p = {spread['p']:.2g}"
    )
    return card(title, chart + small(f"Dashed: an even spread in every instance. {test}"))


def _pieces_card(group: Mapping[str, Any]) -> str:
    rows = [
        (each["piece"], each["share"], f"{each['share']:.2%}")
        for each in group["pieces"]["most_frequent"]
    ]
    most = rows[0][1] if rows else 1
    bars = "".join(bar_rows([row], "pieces", most) for row in rows)
    return card("Most frequent pieces, before masking", f'<div class="columns">{bars}</div>')


def _legend() -> str:
    return (
        '<p class="small">The word that stood there is always written out. <mark class="mask">word</mark> the model'
        f' sees {MASK}; <mark class="kept">word</mark> it sees the word itself; <mark class="random"><s>other</s>'
        " word</mark> it sees another piece.</p>"
    )


def _instance(instance: Mapping[str, Any]) -> str:
    is_random = instance["is_random_next"]
    return (
        '<article class="card instance"><header>'
        f'<span class="badge {"random" if is_random else "next"}">{escape(LABELS[is_random])}</span>'
        f'<span class="soft">{instance["tokens"]:,} tokens, {instance["masked"]:,} masked</span></header>'
        f'<p class="segment" dir="auto"><b>A</b>{_runs(instance["a"])}</p>'
        f'<p class="segment b" dir="auto"><b>B</b>{_runs(instance["b"])}</p>'
        f'<p class="small soft">documents <code>{escape(instance["document_a"])}</code> /'
        f" <code>{escape(instance['document_b'])}</code><br>{escape(instance['shard'])}"
        f" instance {instance['instance']:,}</p></article>"
    )


def _runs(runs: Sequence[Any]) -> str:
    return "".join(
        escape(run) if isinstance(run, str) else _masked(run["shown"], run["original"])
        for run in runs
    )


def _masked(shown: str, original: str) -> str:
    kind = "mask" if shown == MASK else "kept" if shown == original else "random"
    said = escape(f"the model sees {shown}; it was {original}")
    struck = f"<s>{escape(shown)}</s> " if kind == "random" else ""
    return f'<mark class="{kind}" title="{said}">{struck}{escape(original.removeprefix(CONTINUATION))}</mark>'
