"""Compaction: many small segments become few large ones."""
