"""Backfill: many files become one commit; rows that do not fit go to the quarantine table."""
