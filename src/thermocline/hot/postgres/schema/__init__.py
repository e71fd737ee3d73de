"""Tenants, entity types and their tables in PostgreSQL, and their migrations."""
