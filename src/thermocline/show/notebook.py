"""Previews of Arrow tables in notebooks: answers and gaps are shown as HTML, bounded in size.

In:   how much to show, from arguments, the environment or a TOML file
Out:  a formatter in IPython's display, which `disable_notebook_display` takes out again

- It is on when this package is imported in IPython or Jupyter, unless another formatter of Arrow
  tables is there or THERMOCLINE_NOTEBOOK_DISPLAY is 0. The answers stay Arrow tables.
- THERMOCLINE_NOTEBOOK_CONFIG names a TOML file with a section [notebook_display].
"""

import os
import sys
import tomllib
import warnings
from dataclasses import replace
from typing import Any

from thermocline.errors import Invalid, NotFound, ThermoclineError
from thermocline.format.argument import check_count, check_path
from thermocline.show.rows import ALIGNMENTS, PreviewOptions, rows_html

SWITCH = "THERMOCLINE_NOTEBOOK_DISPLAY"
CONFIG = "THERMOCLINE_NOTEBOOK_CONFIG"
SECTION = "notebook_display"
_OFF = frozenset({"0", "false", "no", "off"})


class _Display:
    """The one formatter of a process: what it shows, and what it replaced."""

    options = PreviewOptions()
    replaced: Any = None
    is_on = False

    @classmethod
    def show(cls, rows: Any) -> str:
        """Return the preview of a table; the options are those of now."""
        return rows_html(rows, cls.options)


def enable_notebook_display(
    *, max_rows: int = 20, max_cols: int = 50, max_cell_chars: int = 2_000, align: str = "right"
) -> bool:
    """Show Arrow tables as bounded HTML in this notebook; False outside of a notebook.

    `align` is `right`, `left` or `auto`: numbers right and texts left.
    """
    options = _check_options(
        PreviewOptions(),
        {
            "max_rows": max_rows,
            "max_cols": max_cols,
            "max_cell_chars": max_cell_chars,
            "align": align,
        },
    )
    _Display.options = options
    return _switch_on(replaces=True)


def disable_notebook_display() -> bool:
    """Stop showing Arrow tables as HTML; tell whether this display was on.

    A formatter that was there before is there again.
    """
    printers = _find_printers()
    table = _table_class()
    if printers is None or not _Display.is_on or printers.get(table) != _Display.show:
        _Display.is_on = False
        return False
    if _Display.replaced is None:
        del printers[table]
    else:
        printers[table] = _Display.replaced
    _Display.is_on = False
    return True


def load_notebook_display_config(path: str | os.PathLike[str]) -> bool:
    """Take the settings of the section `[notebook_display]` of a TOML file; False without one."""
    place = os.path.expanduser(check_path(path, "path"))
    try:
        with open(place, "rb") as file:
            found = tomllib.load(file).get(SECTION)
    except OSError as error:
        raise NotFound("the file cannot be read", hint="check the path", path=place) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid("the file is not TOML", hint="fix it", path=place, why=str(error)) from error
    if not isinstance(found, dict) or not found:
        return False
    _Display.options = _check_options(_Display.options, found)
    return True


def start_in_notebook() -> bool:
    """Show Arrow tables as HTML if this process is a notebook and the environment allows it."""
    if os.environ.get(SWITCH, "").strip().lower() in _OFF:
        return False
    config = os.environ.get(CONFIG)
    if config:
        try:
            load_notebook_display_config(config)
        except ThermoclineError as error:
            warnings.warn(f"{CONFIG}: {error}", stacklevel=2)
    return _switch_on(replaces=False)


def _check_options(options: PreviewOptions, given: dict[str, Any]) -> PreviewOptions:
    known = set(PreviewOptions.__slots__)
    unknown = sorted(set(given) - known)
    if unknown:
        hint = f"use {', '.join(sorted(known))}"
        raise Invalid("unknown settings of the display", hint=hint, settings=unknown)
    for name in given.keys() - {"align"}:
        check_count(given[name], name, least=1)
    if given.get("align", "right") not in ALIGNMENTS:
        hint = f"use one of {', '.join(ALIGNMENTS)}"
        raise Invalid("unknown alignment", hint=hint, got=given["align"])
    return replace(options, **given)


def _switch_on(*, replaces: bool) -> bool:
    printers = _find_printers()
    if printers is None:
        return False
    table = _table_class()
    present = printers.get(table)
    if present == _Display.show:
        _Display.is_on = True
        return True
    if present is not None and not replaces:
        return False
    _Display.replaced = present
    printers[table] = _Display.show
    _Display.is_on = True
    return True


def _table_class() -> type:
    import pyarrow as pa

    table: type = pa.Table
    return table


def _find_printers() -> dict[type, Any] | None:
    """Return the HTML printers of the running IPython by class; None outside of it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    formatters = getattr(getattr(shell, "display_formatter", None), "formatters", None)
    html = formatters.get("text/html") if isinstance(formatters, dict) else None
    found = getattr(html, "type_printers", None)
    return found if isinstance(found, dict) else None
