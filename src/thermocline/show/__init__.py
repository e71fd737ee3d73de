"""Pictures of a table: what it is and which stretches of time it holds, as text and as HTML.

- Values in, text out: no function reads a file or a clock.
- A table's content appears as text only: never as markup, script or terminal control.
"""

from thermocline.show.facts import table_facts
from thermocline.show.html import list_html, table_html
from thermocline.show.picture import Picture, coverage_bar, coverage_picture
from thermocline.show.text import clock_text, share_text, size_text, visible

__all__ = [
    "Picture",
    "clock_text",
    "coverage_bar",
    "coverage_picture",
    "list_html",
    "share_text",
    "size_text",
    "table_facts",
    "table_html",
    "visible",
]
