"""PromQL over the metric tables of a lake: parsed, evaluated in columns, answered as JSON."""
