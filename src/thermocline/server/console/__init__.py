"""The console: a page over the API, as files that were built from `console/` at the root."""
