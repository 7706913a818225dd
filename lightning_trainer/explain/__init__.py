"""Why a rollout was trained or not: its records, what training made of them, and the cause in one line."""
