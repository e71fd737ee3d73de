"""Foreign rows to Arrow batches that fit a table."""
