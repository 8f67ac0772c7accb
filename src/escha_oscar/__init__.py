"""Integrate the OSCAR INT2 KV cache (sglang PR #32129) into an installed Escha runtime."""

__version__ = "0.1.0"
