"""Rollups: aggregates by window, recomputed only where the source changed."""
