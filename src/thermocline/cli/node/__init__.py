"""Commands that run, check, copy and administer a node."""
