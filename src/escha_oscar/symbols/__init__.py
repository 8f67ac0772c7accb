"""Names in Python text, read without importing it: what a tree defines, where a name leads, what a call may pass."""
