"""Links of the pages have targets: files of the clone, and existing headings."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").glob("**/*.md"), *ROOT.glob("*.md")])
_LINK, _CODE = re.compile(r"\]\(([^)\s]+)\)"), re.compile(r"```.*?```", re.DOTALL)


def text_of(page):
    """The text of a page without its programs."""
    return _CODE.sub("", page.read_text())


def anchor(heading):
    """The anchor of a heading, as the site's generator and GitHub name it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"<!--.*?-->", "", heading))
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain.lower()).strip())


def broken(page, text):
    """Yield the links of a page whose target does not exist."""
    for target in _LINK.findall(text):
        path, _, name = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (page.parent / path).resolve() if path else page
        if file.parent == ROOT / "docs" / "examples":  # the site makes these pages from the programs
            file = ROOT / "examples" / f"{file.stem}.py"
        if not file.exists():
            yield target
        elif name and file.suffix == ".md":
            headings = re.findall(r"^#{1,6} (.*)$", text_of(file), re.MULTILINE)
            if name not in map(anchor, headings):
                yield target


def test_no_link_of_a_page_leads_nowhere():
    found = {page.name: list(broken(page, text_of(page))) for page in PAGES}
    assert not {name: links for name, links in found.items() if links}
    assert sum(len(_LINK.findall(text_of(page))) for page in PAGES) > 500


@pytest.mark.parametrize("target", ["nowhere.md", "cafe.md#no-such-heading", "#no-such-heading", "examples/none.md"])
def test_a_link_that_leads_nowhere_is_found(target):
    page = ROOT / "docs" / "index.md"
    assert list(broken(page, f"See [this]({target}) and [that](cafe.md), [here](https://example.org).")) == [target]
