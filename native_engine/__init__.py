"""The paged-attention engine: continuous batching over token ids.

Usable as a library without the gateway. Knows nothing of text, HTTP, processes or asyncio; it runs
one step when told. Importing this package imports no torch: `types`, `errors`, `scheduler`,
`block_manager` and `sequence` stay light.

Shapes are written `[num_tokens, num_kv_heads, head_dim] dtype`, in full words, where a tensor is
made or taken.
"""
