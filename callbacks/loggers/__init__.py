"""Loggers: callbacks that write metrics, images, histograms, tables and texts somewhere."""
