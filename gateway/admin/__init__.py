"""The admin API: what operators do with tenants, keys, usage and limits, over HTTP.

`routes.py` is its table, `resource.py` the way in and out that all of it shares.
"""
