"""Every figure and table of three papers beside ours."""
