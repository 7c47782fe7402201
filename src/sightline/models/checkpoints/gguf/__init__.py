"""GGUF files: their header, their settings as a config, their numbers and their tokenizer."""
