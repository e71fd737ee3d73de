"""The place of `pipeline_settings` in version 0.1; it goes with version 0.2."""

from typing import Any

from thermocline.pipeline.moved import import_moved


def __getattr__(name: str) -> Any:
    if name == "pipeline_settings":
        return import_moved(f"{__name__}.{name}", "pipeline_settings")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
