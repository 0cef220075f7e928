"""The `turnout` command: one module per group of subcommands, each fast to import."""
