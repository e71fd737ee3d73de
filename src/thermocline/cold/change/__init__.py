"""Every kind of change to a table, each planned for one commit."""
