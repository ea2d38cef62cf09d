"""What a TrainModule is made of, besides its hooks."""
