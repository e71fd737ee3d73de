"""The API as data: its routes, the types of requests and responses, and the OpenAPI document."""
