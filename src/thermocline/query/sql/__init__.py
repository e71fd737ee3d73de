"""SQL text to a plan: parsed, checked, tables pinned and pruned, text rewritten for the engine."""
