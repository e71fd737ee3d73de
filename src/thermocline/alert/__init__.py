"""Alerts: rules over a lake's tables, their states and history, and webhooks that are retried."""
