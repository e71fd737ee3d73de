"""The append-only tier: a journal of Arrow batches, and the rows of it in memory."""
