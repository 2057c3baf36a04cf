"""Pages link what they name, every link leads somewhere, and the index has every page."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scripts.pictures import MOST_BYTES, draw_loss

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs/index.md"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "scripts/bench/results/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
FILE = re.compile(
    r"(?<![\w./{}$-])(?:pipeline|trainer|tokenizer|scripts|tests|configs)/[\w./*-]*[\w*]"
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(page):
    """The relative links of a page's prose."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    return [link for link in LINK.findall(text) if "://" not in link]


def anchors(page):
    """The names that headings have in a link, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE
    )
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links {link}, and {target} is not there"
        assert not anchor or anchor in anchors(target), (
            f"{page.name} links {link}; {target.name} has {anchors(target)}"
        )


def test_the_index_has_every_page_once():
    linked = sorted(link for link in links(INDEX) if not link.startswith("../"))
    notebooks = [f"notebooks/{path.name}" for path in (ROOT / "docs/notebooks").glob("*.ipynb")]
    assert linked == sorted(
        notebooks + [page.name for page in (ROOT / "docs").glob("*.md") if page != INDEX]
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_that_are_named_are_linked(page):
    """In prose, that is; blocks of code and the generated page of commands name files as they are
    typed.
    """
    if page.name == "commands.md":
        return
    prose = re.sub(r"```.*?```|\[[^]]*\]\([^)]*\)", "", page.read_text(), flags=re.DOTALL)
    assert re.findall(r"\bdocs/[\w-]+\.md", prose) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_a_page_names_exist(page):
    """But for those that an example makes, which begins with the file's name."""
    text = page.read_text()
    modules = {
        f"{name.replace('.', '/')}.py"
        for name in re.findall(r"-m (scripts\.[\w.]*\w)(?![\w.])", text)
    }
    made = {*re.findall(r"^# (\S+\.py)$", text, re.MULTILINE)}
    missing = [
        path for path in ({*FILE.findall(text)} | modules) - made if not list(ROOT.glob(path))
    ]
    assert not missing, f"{page.name} names {missing}"


def test_pictures_are_small_and_stand_alone():
    pictures = {path.name: path.read_bytes() for path in (ROOT / "docs/pictures").iterdir()}
    assert {"loss.svg", "report.png"} <= pictures.keys()
    assert all(len(content) <= MOST_BYTES for content in pictures.values())
    tree = ET.fromstring(pictures["loss.svg"])
    assert tree.tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(rb"(href|url\()", pictures["loss.svg"])


def test_the_loss_curve_is_drawn_from_a_run(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    rows = [
        {"step": step, "split": "train", "phase": 0, "tokens": 9, "mlm_loss": 9.0 - step}
        for step in (1, 2, 3)
    ]
    rows.append({"step": 3, "split": "validation", "mlm_loss": 6.5, "unigram_entropy": 6.1})
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tree = ET.fromstring(draw_loss(run))
    assert len(tree.findall(".//{*}polyline")) == 3
    assert not tree.findall(".//{*}rect[@class='hover']")


def test_every_result_has_its_line_in_the_table_and_its_program():
    folder = ROOT / "scripts/bench/results"
    rows = re.findall(
        r"^\| (\S+\.jsonl) \| (\w+) \|", (folder / "README.md").read_text(), re.MULTILINE
    )
    assert all(any(path.match(pattern) for pattern, _ in rows) for path in folder.glob("*.jsonl"))
    assert all(list(folder.glob(pattern)) for pattern, _ in rows)
    assert all((folder.parent / f"{program}.py").exists() for _, program in rows)
