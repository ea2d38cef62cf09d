"""What other trainers call things, answered with our names; what is not done here."""
