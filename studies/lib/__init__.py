"""Shared by the studies: running `coorp sim`, deriving team files from others, tables."""
