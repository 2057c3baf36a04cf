"""Makes the pages of the website from files that GitHub shows too; mkdocs calls these hooks.

README.md, CHANGELOG.md and CONTRIBUTING.md become pages beside those of docs/. Links are written
for GitHub, where every file of the repository can be linked. On the website a link to a page leads
to that page, and a link to any other file is its text alone.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""The page of the website that each file outside of docs/ becomes."""

_LINK = re.compile(r"(\[[^\[\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files outside of docs/ to the pages of the website."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Changes the links of a page from files of the repository to pages of the website."""
    sources = {page: source for source, page in PAGES.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    folder = posixpath.dirname(source)

    def change(link: re.Match[str]) -> str:
        text = link[1]
        url = link[2]
        anchor = link[3] or ""
        if ":" in url:
            return link[0]
        target = posixpath.normpath(posixpath.join(folder, url))
        if target in PAGES:
            return f"{text}({PAGES[target]}{anchor})"
        if re.match(r"docs/([\w-]+\.md|pictures/)", target):
            return f"{text}({target.removeprefix('docs/')}{anchor})"
        return text[1:-1]

    return _LINK.sub(change, markdown)
