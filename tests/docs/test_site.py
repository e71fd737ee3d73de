"""The documents: the site names every page once, links lead somewhere, words are plain.

`make docs` builds the site and stops at a broken link too; these tests need no Sphinx.
"""

import importlib
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

from thermocline.backup import backup
from thermocline.cold import catalog
from thermocline.format import coverage
from thermocline.format.log import commit
from thermocline.hot.wal import frame
from tidy import rules

ROOT = Path(__file__).parents[2]
SITE = runpy.run_path(str(ROOT / "docs" / "site" / "conf.py"))
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"]
)
OUTSIDE = re.compile(r"[a-z]+:")


def listed():
    """Return every page that the contents of the site name, in their order."""
    chapters = [name for names in SITE["PAGES"].values() for name in names]
    sources = ["docs/adr/README"]
    SITE["add_contents"](None, "docs/adr/README", sources)
    decisions = re.findall(r"^/(docs/adr/\S+)$", sources[0], re.MULTILINE)
    return [SITE["START"], *chapters, *decisions]


def prose(path):
    """Return a page without its code, where brackets are no links."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path):
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(path):
    """Return the relative links of a page: file and anchor, each empty where there is none."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(path))
    return [link.partition("#")[::2] for link in found if not OUTSIDE.match(link)]


def test_the_contents_name_every_page_exactly_once():
    names = listed()
    assert [name for name, times in Counter(names).items() if times > 1] == []
    pages = {path.relative_to(ROOT).with_suffix("").as_posix() for path in PAGES}
    assert set(names) == pages | {"bench/RESULTS"}


def test_the_links_are_seen():
    found = [link for path in PAGES for link in links(path)]
    assert len(found) > 60
    assert any(anchor for _, anchor in found)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_to_a_file_and_a_heading(path):
    for file, anchor in links(path):
        target = (path.parent / file).resolve() if file else path
        assert target.is_file(), (file, "is not there, or is a folder, which the site cannot show")
        assert target.is_relative_to(ROOT), file
        if anchor:
            assert anchor in anchors(target), (file, anchor)


WRITTEN = [
    *(path for path in PAGES if path.name != "CONTRIBUTING.md"),  # it lists the words
    *(ROOT / "examples").glob("*.py"),
    *(path for path in (ROOT / "deploy").rglob("*") if path.is_file()),
    *(path for path in (ROOT / "console" / "src").rglob("*") if path.is_file()),
    ROOT / "console" / "index.html",
]


def test_no_document_and_no_page_has_a_word_that_we_do_not_use():
    assert len(WRITTEN) > 50
    found = [
        finding
        for path in WRITTEN
        for finding in rules.private_words(str(path.relative_to(ROOT)), path.read_text())
    ]
    assert found == []


def test_every_import_that_the_upgrade_page_shows_works():
    page = (ROOT / "docs" / "upgrade.md").read_text()
    shown = re.findall(r"\| `from (\S+) import (\w+)` \|$", page, re.MULTILINE)
    assert len(shown) == 3
    for module, name in shown:
        assert hasattr(importlib.import_module(module), name)


def test_the_upgrade_page_has_the_format_versions_of_the_code():
    page = (ROOT / "docs" / "upgrade.md").read_text()
    rows = dict(re.findall(r"^\| \[?([a-z]+)[^|]* \| (\d+) \|", page, re.MULTILINE))
    assert {name: int(version) for name, version in rows.items()} == {
        "commit": commit.FORMAT_VERSION,
        "coverage": coverage.PACKED_VERSION,
        "journal": frame.FORMAT_VERSION,
        "lake": catalog.FORMAT_VERSION,
        "backups": backup.FORMAT_VERSION,
    }
