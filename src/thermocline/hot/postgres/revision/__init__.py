"""Every committed change of entities: the history of a key, and the feed of all in one order."""
