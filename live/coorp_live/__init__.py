"""Holds the native module of the package `coorp` with the live half; `import coorp` loads it."""
