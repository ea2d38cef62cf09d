"""The files of a checkpoint: their format, where they lie, whether they are whole."""
