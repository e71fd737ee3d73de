"""Entity contracts: JSON Schemas that are registered, versioned and given typed columns.

In:   JSON Schema documents, and documents to validate against them
Out:  `Contract`s, validated documents, their rows; whether one contract may follow another

- Nothing here opens a file or a connection, or fetches a URL.
"""
