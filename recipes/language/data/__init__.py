"""What language models are trained on: records of files, their samples as tokens, and rows of these."""
