"""CPU implementations of the ops: in C, compiled at first use, and in torch's operators where that
cannot be. They know nothing of dispatch.
"""
