"""JWT access tokens of an operator's identity provider, taken where a tenant's key would be."""
