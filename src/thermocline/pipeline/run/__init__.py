"""Running jobs: which are due, one at a time for each table, each noted in the history."""
