"""How the directory's tables came to be: one file per step, run by `gateway/tenancy/migrate.py`."""
