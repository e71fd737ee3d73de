"""What the lake does not have yet: changes read in one snapshot, exported, then forgotten."""
