"""Finding the installed runtime without importing it."""
