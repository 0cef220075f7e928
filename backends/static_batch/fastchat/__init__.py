"""FastChat's controller and worker protocol."""
