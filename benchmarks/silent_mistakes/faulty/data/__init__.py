"""Mistakes in the data: splits, order, scale, contents, augmentation."""
