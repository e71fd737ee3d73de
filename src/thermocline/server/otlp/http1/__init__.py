"""A lean HTTP/1.1 server for requests with large bodies."""
