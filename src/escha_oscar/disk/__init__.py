"""Changing files on a disk: one transaction that ends all old or all new. Knows nothing of what the files hold."""
