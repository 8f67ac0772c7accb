"""An integration as it stands in an environment: what is remembered of it, and the operations that change it."""
