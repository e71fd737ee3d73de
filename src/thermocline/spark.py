"""Spark with Thermocline's tables: a session, a fast read, and the format `thermocline`.

    import thermocline as tc

    spark = tc.spark.session("local[*]")
    prices = tc.spark.read(spark, "lake/prices", start="2024-06-01")
    prices.write.format("thermocline").mode("append").save("lake/copy")

- Spark is loaded when one of these names is first used: `pip install 'thermocline[spark]'`. Java
  need not be installed.
- In a session started elsewhere, for example by `spark-submit`, `register` adds the format.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thermocline.pipeline.spark.native_read import read
    from thermocline.pipeline.spark.session import session, stop
    from thermocline.pipeline.spark.source import register

__all__ = ["read", "register", "session", "stop"]

_LAZY = {
    "read": "thermocline.pipeline.spark.native_read",
    "register": "thermocline.pipeline.spark.source",
    "session": "thermocline.pipeline.spark.session",
    "stop": "thermocline.pipeline.spark.session",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
