"""Compaction: many small segments become few large ones, in one process or on many workers."""
