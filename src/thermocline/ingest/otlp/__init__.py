"""OpenTelemetry's requests (OTLP) to Arrow batches, without any server.

    body ─► protobuf ─┬► metrics, records, spans ─┬► batches of `tables`, and a tally ─► answer
    body ─► json ─────┘                           │
    body ─► fast: wire, scan, in the common shape ┘

Nothing here opens a file, reads the clock or keeps rows.
"""
