"""The hot tier of entities: rows by key in PostgreSQL, with a row per change until its export."""
