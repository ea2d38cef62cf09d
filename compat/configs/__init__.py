"""Configuration files of other trainers as arguments of ours, with an account of each of their keys."""
