"""What the lake does not have yet: rows that are durable and not flushed."""
