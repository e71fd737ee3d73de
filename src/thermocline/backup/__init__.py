"""Copies of a lake, made while it is written, and restored."""
