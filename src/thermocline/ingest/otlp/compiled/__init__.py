"""OpenTelemetry requests of the common shape, decoded by compiled code."""
