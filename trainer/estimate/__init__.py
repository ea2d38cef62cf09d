"""Whether a training run fits its devices, and how fast it would be, before anything is allocated."""
