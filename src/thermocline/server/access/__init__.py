"""Who may do what: keys, tenants' quotas, host names, private files and the audit log."""
