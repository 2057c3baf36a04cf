"""Pages link what they name, every link leads somewhere, and every page can be reached."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scripts.pictures import BASELINES, MOST_BYTES, draw_blimp, draw_loss, read_results
from scripts.site_pages import PAGES as WEBSITE_PAGES

ROOT = Path(__file__).parents[2]
OTHERS = (
    "README.md",
    "CONTRIBUTING.md",
    "scripts/bench/results/README.md",
    "scripts/soak/results/README.md",
)
PAGES = [*(ROOT / name for name in OTHERS), *sorted((ROOT / "docs").glob("*.md"))]
ROOMS = "pipeline|trainer|tokenizer|scripts|tests|configs"
FILE = re.compile(rf"(?<![\w./{{}}$-])(?:{ROOMS})/[\w./*-]*[\w*]")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(page):
    """The relative links of a page's prose."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    return [link for link in LINK.findall(text) if "://" not in link]


def anchors(page):
    """The names that headings have in a link, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
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


def test_the_website_has_every_page_once():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"([\w-]+\.md)$", navigation, re.MULTILINE)
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(listed) == sorted([*pages, *WEBSITE_PAGES.values()])


def test_every_page_can_be_reached_from_readme():
    notebooks = {*(ROOT / "docs/notebooks").glob("*.ipynb")}
    assert notebooks
    reached = {ROOT / "README.md"}
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
        new = {path for path in targets - reached if path in notebooks or path.suffix == ".md"}
        new = {path for path in new if path.is_file()}
        reached |= new
        waiting += new - notebooks
    missing = {*PAGES, *notebooks} - reached
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_that_are_named_are_linked(page):
    """In prose: code, and the generated page of commands, name files as they are typed."""
    if page.name == "commands.md":
        return
    prose = re.sub(r"```.*?```|\[[^]]*\]\([^)]*\)", "", page.read_text(), flags=re.DOTALL)
    assert re.findall(r"\bdocs/[\w-]+\.md", prose) == []


def test_pages_that_code_and_settings_name_exist():
    folders = ("pipeline", "trainer", "tokenizer", "scripts", "tests", "configs", ".github")
    kinds = {".py", ".c", ".h", ".yaml", ".yml", ".sh", ".md", ""}
    files = [ROOT / "pyproject.toml", ROOT / "CONTRIBUTING.md"]
    for folder in folders:
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    named = {
        (path.name, page)
        for path in files
        if path.is_file() and "__pycache__" not in path.parts
        for page in re.findall(r"\bdocs/[\w-]+\.md\b", path.read_text())
    }
    assert len(named) > 20
    missing = [(name, page) for name, page in sorted(named) if not (ROOT / page).exists()]
    assert not missing, f"no such pages: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_a_page_names_exist(page):
    """But for those that an example makes, which begins with the file's name."""
    text = page.read_text()
    modules = re.findall(r"-m (scripts\.[\w.]*\w)(?![\w.])", text)
    named = {*FILE.findall(text), *(f"{name.replace('.', '/')}.py" for name in modules)}
    made = {*re.findall(r"^# (\S+\.py)$", text, re.MULTILINE)}
    missing = [path for path in named - made if not list(ROOT.glob(path))]
    assert not missing, f"{page.name} names {missing}"


def test_pictures_are_small_and_stand_alone():
    pictures = {path.name: path.read_bytes() for path in (ROOT / "docs/pictures").iterdir()}
    assert pictures.keys() == {"blimp.svg", "loss.svg", "report.png"}
    assert all(len(content) <= MOST_BYTES for content in pictures.values())
    for name in ("blimp.svg", "loss.svg"):
        assert ET.fromstring(pictures[name]).tag == "{http://www.w3.org/2000/svg}svg"
        assert not re.search(rb"(href|url\()", pictures[name])


def test_the_picture_of_blimp_shows_the_committed_results():
    cure = "run `python -m scripts.pictures docs/pictures`"
    assert (ROOT / "docs/pictures/blimp.svg").read_text() == draw_blimp(read_results()), cure


def test_a_model_on_blimp_is_a_dot_named_by_size_and_instances():
    def result(model, minutes, score):
        bill = {"to_model": minutes}
        model = {"model": model}
        return {"config": model, "root_hash": "0", "cpu_minutes": bill, "score": score}

    results = [result("tiny", 10.0, 55.0), result("tiny", 20.0, 60.0), result("mini", 40.0, 65.0)]
    tree = ET.fromstring(draw_blimp(results))
    assert len(tree.findall(".//{*}circle")) == len(results)
    labels = [text.text for text in tree.findall(".//{*}g/{*}text")]
    assert labels == [*BASELINES, "BERT-tiny, pairs", "BERT-mini, pairs"]


def test_the_loss_curve_is_drawn_from_a_run(tmp_path):
    train = {"split": "train", "phase": 0, "tokens": 9}
    rows = [train | {"step": step, "mlm_loss": 9.0 - step} for step in (1, 2, 3)]
    rows.append({"step": 3, "split": "validation", "mlm_loss": 6.5, "unigram_entropy": 6.1})
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tree = ET.fromstring(draw_loss(tmp_path))
    assert len(tree.findall(".//{*}polyline")) == 3
    assert not tree.findall(".//{*}rect[@class='hover']")


def test_every_result_has_its_line_in_the_table_and_its_program():
    folder = ROOT / "scripts/bench/results"
    table = (folder / "README.md").read_text()
    rows = re.findall(r"^\| (\S+\.jsonl) \| (\w+) \|", table, re.MULTILINE)
    assert all(any(path.match(pattern) for pattern, _ in rows) for path in folder.glob("*.jsonl"))
    assert all(list(folder.glob(pattern)) for pattern, _ in rows)
    assert all((folder.parent / f"{program}.py").exists() for _, program in rows)
