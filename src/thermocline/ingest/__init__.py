"""Converts rows and requests from clients to Arrow batches that fit a table."""
