"""Searches for a learning rate and a batch size, by trials on copies of the module."""
