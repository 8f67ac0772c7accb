"""What follows from a model's config.json for serving it: memory per token, and the launch command."""
