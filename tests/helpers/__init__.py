"""What the tests share: starting ranks and processes, loading job scripts, small models."""
