"""The `turnout` command. Modules here import nothing heavy at import time: `--help` is instant."""
