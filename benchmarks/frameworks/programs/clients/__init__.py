"""Programs of packages that call a model and have no agents."""
