"""The micro-batch of ``Trainer(batch_size=...)``, found by trials on copies of the module."""
