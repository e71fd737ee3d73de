"""Entity contracts: JSON Schemas that are registered, versioned and given typed columns.

In:   JSON Schema documents, and documents that are to fit them
Out:  `Contract`s, validated documents, their rows; whether one contract may follow another

- Values only: nothing here opens a file, a connection or an address.
"""
