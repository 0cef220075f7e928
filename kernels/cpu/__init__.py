"""CPU implementations of the ops whose reference is too slow. They know nothing of dispatch."""
