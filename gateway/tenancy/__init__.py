"""Who asks: tenants and their keys, and the lease around every request."""
