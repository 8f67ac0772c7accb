"""Deciding every byte of an integration: which text for each symbol, mended, grafted, and proved."""
