"""The life cycle of a policy's versions: lineage, retention, scores, and rollback."""
