"""Spark itself: sessions, tables as frames, frames as tables, and work on its workers."""
