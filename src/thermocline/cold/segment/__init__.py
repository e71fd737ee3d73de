"""Segments: rows to Parquet files and back, staged before a commit names them."""
