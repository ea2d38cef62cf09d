"""Layers that are split over ranks, and which ranks have the same samples then."""
