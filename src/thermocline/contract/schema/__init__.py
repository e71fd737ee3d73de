"""A JSON Schema read as a contract: checked, closed, its references followed."""
