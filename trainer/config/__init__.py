"""Arguments of the Trainer, names of built-in classes, names that other trainers use."""
