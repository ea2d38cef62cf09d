"""What happens before the first step of a fit or an evaluation: checks, data, resuming, the first lines."""
