"""What local engines share above token ids: tokenizer, chat template, detokenizer, stop strings.

Runs in the gateway's process, so nothing here imports torch.
"""
