"""Precision plugins, float8, the scale of losses in float16."""
