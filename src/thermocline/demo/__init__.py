"""The demonstration: a real node, real telemetry, a real kill, a real pipeline."""
