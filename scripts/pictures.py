"""Makes the README's pictures from what `scripts/demo` left: a curve, the top of a report.

    python -m scripts.pictures demo-output docs/pictures

It needs Chromium (`apt-get install chromium`) and Pillow. The README says which run they show.
"""

import argparse
import io
import re
import subprocess
import tempfile
from pathlib import Path

from trainer.watch.page import CHARTS, draw
from trainer.watch.read_run import read_runs

MOST_BYTES = 60_000
_STYLE = Path(__file__).parents[1] / "pipeline/pages/style.css"
_HOVER = re.compile(r'<rect class="hover".*?</rect>', re.DOTALL)


def main() -> None:
    """Writes loss.svg and report.png into the second folder."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("demo", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    write(arguments.output / "loss.svg", draw_loss(arguments.demo / "run").encode())
    write(arguments.output / "report.png", photograph(arguments.demo / "data/report.html"))


def draw_loss(run: Path) -> str:
    """Returns the chart of a run's masked LM loss as an SVG file, with the report's style sheet."""
    [chart] = [chart for chart in CHARTS if chart.column == "mlm_loss"]
    drawn = draw(chart, read_runs([str(run)]))
    assert drawn, f"{run} has no loss"
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
