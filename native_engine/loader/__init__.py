"""Reading model files: GGUF and Hugging Face folders. Only `gguf_header` does without torch."""
