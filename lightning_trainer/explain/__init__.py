"""Why a rollout was trained or not: what was recorded of it, what the core made of that, and the cause in one line."""
