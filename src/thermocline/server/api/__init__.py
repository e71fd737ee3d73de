"""The HTTP API: one table of routes defines routing, access control and the OpenAPI page."""
