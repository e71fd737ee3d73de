"""The PostgreSQL server to use: an address, or an embedded server under the data folder."""
