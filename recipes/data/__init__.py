"""What recipes train on: images, texts, tables; models and tokenizers to begin from."""
