"""State of the process and of torch: compilation, determinism, garbage collection, fused optimizers."""
