"""The pipeline on Spark: whatever moves or rewrites rows in bulk, one job a module."""
