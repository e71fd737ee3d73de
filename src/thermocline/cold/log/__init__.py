"""The commit log of a table: the arbiter of what is in it."""
