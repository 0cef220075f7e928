"""One module per public wire format: bytes in, `GenerationRequest`; events in, bytes out. Pure.

No I/O, no clock.
"""
