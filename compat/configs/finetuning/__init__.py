"""Configuration files of LLaMA-Factory and Axolotl as settings of our recipes of language models."""
