"""Damage in a journal: surveyed, salvaged, set aside and repaired when an operator decides."""
