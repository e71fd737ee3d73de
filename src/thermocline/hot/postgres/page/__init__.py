"""Pages of entities: filtered, sorted, with their references, in one query."""
