"""Running jobs: which are due, one at a time for each table, each noted in the history."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "Runner":  # the place of version 0.1; it goes with version 0.2
        from thermocline.pipeline.moved import import_moved

        return import_moved(f"{__name__}.{name}", name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
