"""The HTTP API: one table of routes, from which routing, access and the OpenAPI page are made."""
