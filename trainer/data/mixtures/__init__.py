"""Mixtures of datasets, and which samples of each they take."""
