"""Which version of a contract may follow another, and why one may not."""
