"""What the bytes of a table mean: paths, schema, commits, state, conflicts, coverage. No I/O."""
