"""Arrow Flight SQL: the queries of the API for ADBC and JDBC, over gRPC on a separate port."""
