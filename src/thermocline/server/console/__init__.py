"""The console, a web page over the API: its files, built from `console/` at the root."""
