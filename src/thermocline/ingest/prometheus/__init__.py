"""Samples of Prometheus' remote write and of the line protocol to the rows of metrics."""
