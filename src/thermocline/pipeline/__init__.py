"""The pipeline on Spark: jobs that move or rewrite rows in bulk, one job a module."""
