"""The training loop, the evaluation loop, and what is set up around them."""
