"""Verification in levels: files, static, imports, numerics, log, live."""
