"""Makes the pictures of the pages, as SVG and PNG files.

    python -m scripts.pictures docs/pictures
    python -m scripts.pictures docs/pictures --demo demo-output

blimp.svg shows the results of scripts/bench/babylm.py. With `--demo`, which is the folder that
`scripts/demo` left, there are also the README's pictures: loss.svg and the top of a report. This
needs Chromium (`apt-get install chromium`) and Pillow. The README says which run they show.
"""

import argparse
import io
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.pages.chart import Curve, Point, draw_chart
from scripts.checkout import ROOT
from trainer.watch.page import CHARTS, draw
from trainer.watch.read_run import read_runs

MOST_BYTES = 60_000
RESULTS = ROOT / "scripts/bench/results"
SENTENCES = "0a13e8bd60dbd6a550f933177233a401f4a34a872c82fa11a98a8734a71ee898"
"""Root hash of the dataset of single sentences; all other datasets of the results have pairs."""

BASELINES = {"RoBERTa-base": 69.5, "OPT-125M": 62.6, "T5-base": 58.8}
"""Scores that BabyLM's organisers publish for 10 M words."""

_STYLE = ROOT / "pipeline/pages/style.css"
_HOVER = re.compile(r'<rect class="hover".*?</rect>', re.DOTALL)


def main() -> None:
    """Writes the pictures into a folder."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("output", type=Path, help="the folder of the pictures")
    parser.add_argument("--demo", type=Path, help="what scripts/demo left")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    write(arguments.output / "blimp.svg", draw_blimp(read_results()).encode())
    if arguments.demo:
        write(arguments.output / "loss.svg", draw_loss(arguments.demo / "run").encode())
        write(arguments.output / "report.png", photograph(arguments.demo / "data/report.html"))


def draw_loss(run: Path) -> str:
    """Returns the chart of a run's masked LM loss as an SVG file."""
    [chart] = [chart for chart in CHARTS if chart.column == "mlm_loss"]
    drawn = draw(chart, read_runs([str(run)]))
    assert drawn, f"{run} has no loss"
    return make_standalone(drawn)


def read_results() -> list[dict[str, Any]]:
    """Returns the committed results of scripts/bench/babylm.py, the cheapest model first."""
    lines = [
        line for path in RESULTS.glob("babylm-*.jsonl") for line in path.read_text().splitlines()
    ]
    return sorted(map(json.loads, lines), key=lambda row: float(row["cpu_minutes"]["to_model"]))


def draw_blimp(results: Iterable[Mapping[str, Any]]) -> str:
    """Returns a chart of BLiMP scores over CPU-minutes as an SVG file, with BabyLM's baselines.

    Args:
        results: Results of scripts/bench/babylm.py; each is one dot.
    """
    found: dict[str, list[Point]] = {}
    for row in results:
        kind = "sentences" if row["root_hash"] == SENTENCES else "pairs"
        point = (float(row["cpu_minutes"]["to_model"]), float(row["score"]))
        found.setdefault(f"BERT-{row['config']['model']}, {kind}", []).append(point)
    dots = []
    for colour, (label, points) in enumerate(found.items()):
        # A curve of its own for each, as a line through several models would mean nothing.
        names = [""] * (len(points) - 1) + [label]
        dots += [
            Curve(name, [point], "dots", colour) for name, point in zip(names, points, strict=True)
        ]
    levels = [Curve(name, [(0.0, score)], "guess") for name, score in BASELINES.items()]
    drawn = draw_chart(
        "BLiMP, mean of 12 phenomena",
        [*levels, *dots],
        "CPU-minutes from text to model",
        lambda score: f"{score:g} %",
        labelled=True,
    )
    return make_standalone(drawn)


def make_standalone(drawn: str) -> str:
    """Returns the chart of a page as an SVG file, with the pages' style sheet."""
    head, _, body = _HOVER.sub("", drawn).strip().partition(">")
    style = f"<style>{_STYLE.read_text()}</style>"
    return f'{head} xmlns="http://www.w3.org/2000/svg" font-family="sans-serif">{style}{body}\n'


def photograph(page: Path, size: str = "1180,720", colours: int = 32) -> bytes:
    """Returns a PNG of the top of a page as Chromium shows it, in few colours so that it is small.

    Args:
        page: The HTML file.
        size: Width and height of the window, in pixels.
        colours: The number of colours.
    """
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "page.png"
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [
            f"--user-data-dir={folder}/profile",
            f"--window-size={size}",
            f"--screenshot={picture}",
        ]
        subprocess.run(
            [*command, page.resolve().as_uri()], check=True, capture_output=True, timeout=120
        )
        packed = io.BytesIO()
        Image.open(picture).convert("RGB").quantize(colours).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def write(path: Path, content: bytes) -> None:
    """Writes a picture, which must be small enough to be part of the repository."""
    assert len(content) <= MOST_BYTES, (
        f"{path} has {len(content):,} bytes, over {MOST_BYTES:,}; show less of the page"
    )
    path.write_bytes(content)
    print(f"{path}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
