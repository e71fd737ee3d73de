"""Commands about entities and their schemas."""
