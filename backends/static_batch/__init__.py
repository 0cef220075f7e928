"""Static batches, and the controller/worker protocol that FastChat puts around them."""
