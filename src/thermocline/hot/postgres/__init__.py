"""The hot tier of entities: rows by key in PostgreSQL, each change noted until the lake has it."""
