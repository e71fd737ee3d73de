"""The place of `JobWorkspace` in version 0.1; it goes with version 0.2."""

from typing import Any

from thermocline.pipeline.moved import import_moved


def __getattr__(name: str) -> Any:
    if name == "Site":
        return import_moved(f"{__name__}.{name}", "JobWorkspace")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
