"""The Iceberg REST catalogue of a node, and its tables' files over the protocol of S3"""
