"""Verbs for the page: a browser, a node with something to look at, a page that is watched."""

import os
import time
from contextlib import contextmanager

import pytest
from playwright.sync_api import sync_playwright

from console.filled import fill
from fixtures.api import serving

CHROMIUM = os.environ.get("THERMOCLINE_TEST_CHROMIUM", "/usr/bin/chromium")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_MS = 120_000
WATCH = """
    window.refused = [];
    document.addEventListener("securitypolicyviolation", (event) => window.refused.push(
        `${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium, without a network of its own."""
    if not os.path.exists(CHROMIUM):
        pytest.fail(
            f"there is no {CHROMIUM}: install Debian's package with `apt-get install chromium`, or "
            "name another one in THERMOCLINE_TEST_CHROMIUM",
            pytrace=False,
        )
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield found
        found.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node without keys, with tables, hot rows and versions."""
    with serving(tmp_path_factory.mktemp("node"), flush_age_s=3_600.0) as served:
        with served.client() as client:
            fill(client)
        yield served


class Watched:
    """A page, and all that went wrong on it."""

    def __init__(self, page, url):
        self.page = page
        self.url = url
        self.requests = []
        self.errors = []
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(WATCH)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, address=""):
        """Load the page anew at an address after `#`."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/{address}")
        self.page.locator("main").wait_for()
        return self.page

    def go(self, address):
        """Move within the page, as a link does."""
        self.page.evaluate("to => { location.hash = to }", address)

    def settled(self):
        """Wait until nothing waits for an answer any more."""
        self.page.locator("[data-state=loading], [data-state=running]").first.wait_for(
            state="detached"
        )

    def until(self, expression):
        """Wait until an expression is true; the page's own policy forbids the library's way."""
        end_s = time.monotonic() + WAIT_MS / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < end_s, expression
            self.page.wait_for_timeout(50)

    def foreign(self):
        """Return what was asked of anybody but the node."""
        own = (self.url, "about:", "blob:" + self.url)
        return [one for one in self.requests if not one.startswith(own)]

    def refused(self):
        """Return what the page's policy has refused."""
        return self.page.evaluate("window.refused")

    def check(self):
        """Fail when the page asked elsewhere, was refused something, or had an error."""
        assert self.foreign() == []
        assert self.refused() == []
        assert self.errors == []


@pytest.fixture(scope="module")
def watched(browser, node):
    """Return a way to open pages of the node; each is checked and closed at its end."""

    @contextmanager
    def opened(url=None, width=1440, theme="light", **more):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, **more
        )
        one = Watched(context.new_page(), url or node.url)
        try:
            yield one
            one.check()
        finally:
            context.close()

    return opened
