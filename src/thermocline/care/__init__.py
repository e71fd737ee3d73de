"""A node's care for its tables: retention, compaction, vacuum, in a process with a memory limit."""
