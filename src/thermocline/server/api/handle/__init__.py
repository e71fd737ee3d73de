"""The handlers: what each route of the API does."""
