"""SQL text to a plan: parsed, checked, its tables pinned and pruned, its text rewritten for the engine."""
