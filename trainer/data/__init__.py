"""Which samples a step takes, and how they are read: order, loader workers, transfer to the device."""
