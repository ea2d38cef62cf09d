"""Worker processes of loaders: how they are forked, read and ended."""
