"""What the user writes: arguments of the Trainer, names of other trainers, configuration of recipes."""
