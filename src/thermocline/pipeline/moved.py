"""Names that programs import from their old place: they work, and warn, until version 0.2."""

import warnings
from typing import Any


def import_moved(old: str, name: str) -> Any:
    """Return a name of `thermocline.pipeline`, and warn that it has moved."""
    from thermocline import pipeline

    new = f"thermocline.pipeline.{name}"
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
    return getattr(pipeline, name)
