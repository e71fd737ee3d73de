"""The pipeline on Spark: everything that moves or rewrites rows in bulk.

    from thermocline.pipeline import JobWorkspace, Runner

    with JobWorkspace("lake") as workspace:
        list(Runner(workspace).run(["compact"]))

Names are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thermocline.pipeline.run.runner import Runner
    from thermocline.pipeline.run.settings import pipeline_settings
    from thermocline.pipeline.run.workspace import JobWorkspace

__all__ = ["JobWorkspace", "Runner", "pipeline_settings"]

_LAZY = {
    "JobWorkspace": "thermocline.pipeline.run.workspace",
    "Runner": "thermocline.pipeline.run.runner",
    "pipeline_settings": "thermocline.pipeline.run.settings",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
