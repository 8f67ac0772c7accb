"""Scripts that run in the target's interpreter, as files: nothing here is imported by the tool itself."""
