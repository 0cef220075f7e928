"""Where tokens come from: one protocol (`base`), one module or folder per engine.

Knows no HTTP clients' dialects.
"""
