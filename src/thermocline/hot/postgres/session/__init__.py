"""Connections and transactions that end in a known way."""
