"""How new weights and adapters get into the engine, and how requests keep one version meanwhile."""
