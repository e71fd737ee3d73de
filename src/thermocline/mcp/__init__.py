"""Tables for assistants: a read-only server of the Model Context Protocol (MCP)."""
