"""Tests of the command line: through real processes, pipes and terminals."""
