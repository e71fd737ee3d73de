"""Every test here has a real Spark."""

from fixtures.spark import cluster, connect, elsewhere, spark, started_elsewhere

__all__ = ["cluster", "connect", "elsewhere", "spark", "started_elsewhere"]
