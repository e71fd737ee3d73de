"""Entities as their users meet them: written in PostgreSQL, kept in the lake, read exactly.

In:   documents and keys; questions
Out:  what was committed, and when that was true

- This room is the only one that knows both halves of an entity type.
"""
