"""The cold tier: segments named by one commit log, on a file system or an object store."""
