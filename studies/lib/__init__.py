"""What the studies of the simulator share: running `coorp sim`, team files derived from others, tables."""
