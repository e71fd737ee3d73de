"""Queries in worker processes: a pool, a memory limit, deadlines, and results as streams."""
