"""Several nodes on one lake: who they are, and the rows that are only in their journals."""
