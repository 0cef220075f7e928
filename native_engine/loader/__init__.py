"""Reading model files: GGUF and Hugging Face folders. `gguf_header` needs no torch.

The rest does.
"""
