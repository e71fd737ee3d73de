"""Where a table's files live: a file system or an object store, and proof of their bytes."""
