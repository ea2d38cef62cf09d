"""What a run is: module, state, loop, data order, metrics, checkpoints."""
