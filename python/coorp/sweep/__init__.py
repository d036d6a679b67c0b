"""Many runs at once, on all cores or on Ray: `coorp learn --sweep` and `coorp sim --sweep`."""
