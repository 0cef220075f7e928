"""Test data that several suites share, and the few functions that read it."""
