"""Pages link what they name, every link leads somewhere, and the index has every page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs/index.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(page):
    """The relative links of a page's prose."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    return [link for link in LINK.findall(text) if "://" not in link]


def anchors(page):
    """The names that headings have in a link, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links {link}, and {target} is not there"
        assert not anchor or anchor in anchors(target), f"{page.name} links {link}; {target.name} has {anchors(target)}"


def test_the_index_has_every_page_once():
    linked = sorted(link for link in links(INDEX) if not link.startswith("../"))
    assert linked == sorted(page.name for page in (ROOT / "docs").glob("*.md") if page != INDEX)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_that_are_named_are_linked(page):
    """In prose, that is; blocks of code and the generated page of commands name files as they are typed."""
    if page.name == "commands.md":
        return
    prose = re.sub(r"```.*?```|\[[^]]*\]\([^)]*\)", "", page.read_text(), flags=re.DOTALL)
    assert re.findall(r"\bdocs/[\w-]+\.md", prose) == []
