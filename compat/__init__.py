"""Code that was written for other trainers."""
