"""Entities for users: written to PostgreSQL, exported to the lake, read exactly from both.

In:   documents and keys; queries
Out:  committed entities, with the time of which they are exact

- Only this package knows both halves of an entity type.
"""
