"""The command line: the same tables and the same SQL, for people and for scripts."""
