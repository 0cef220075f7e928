"""FastChat's side of the house: padded static batches, and the protocol of its workers."""
