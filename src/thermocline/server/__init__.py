"""A node's network interfaces: OpenTelemetry ingestion, and SQL and administration over HTTP."""
