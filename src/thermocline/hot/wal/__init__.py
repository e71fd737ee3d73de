"""The append-only tier: a journal of Arrow batches, and its rows in memory."""
