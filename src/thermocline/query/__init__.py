"""SQL to rows: gate, plan, scan, run. The only room that knows the query engine."""
