"""The node as others reach it: OpenTelemetry in, SQL and administration by HTTP."""
