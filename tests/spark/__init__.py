"""Tests of the pipeline on Spark: jobs, source and sink, sessions and clusters."""
