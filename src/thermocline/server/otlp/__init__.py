"""OpenTelemetry's requests: received over HTTP and gRPC, queued, decoded and written."""
