"""What recipes of language models share: settings, models, adapters, and how they are optimized."""
