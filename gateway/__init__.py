"""The ASGI application: HTTP, tenants, limits, policies, streaming.

Knows no torch and no engine internals.
"""
