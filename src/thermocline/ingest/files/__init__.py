"""Files of rows: found, their columns inferred, read as batches that fit a table."""
