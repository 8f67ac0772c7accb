"""The static checks, one kind a file: each reads text and yields findings. `verify/static.py` lists them."""
