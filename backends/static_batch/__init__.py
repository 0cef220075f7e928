"""FastChat-style serving: an engine of padded static batches, and FastChat's protocol around it."""
