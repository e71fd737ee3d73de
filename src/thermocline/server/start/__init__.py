"""A node's start and stop: checks, certificate, listeners, and the serving loop."""
