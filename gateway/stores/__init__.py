"""Where limit counters live: one protocol, one module per store, one contract test for all."""
