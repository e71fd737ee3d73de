"""What every screen must be: without findings of axe and without scrolling sideways."""

from axe_playwright_python.sync_playwright import Axe

WIDTHS = (360, 1440)
THEMES = ("light", "dark")


def found(page):
    """Return all that axe finds, by every rule that it has on; nothing is too small."""
    if page.evaluate("typeof axe === 'undefined'"):  # once a page: it is half a megabyte
        page.evaluate(Axe().axe_script)
    look = "axe.run({ resultTypes: ['violations'] }).then((told) => told.violations)"
    return [
        (one["id"], one["impact"], one["nodes"][0]["html"], one["nodes"][0].get("failureSummary"))
        for one in page.evaluate(look)
    ]


def check_usable(watched, address, sign):
    """Open a screen, wait for its sign, and check it at both widths and in both themes."""
    with watched() as one:
        page = one.open(address)
        page.locator(sign).first.wait_for()
        one.settled()
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls"
            for theme in THEMES:
                page.emulate_media(color_scheme=theme)
                one.until(f"document.documentElement.dataset.theme === '{theme}'")
                assert found(page) == [], (width, theme)
