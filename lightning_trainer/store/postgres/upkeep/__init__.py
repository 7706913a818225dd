"""Upkeep of a whole store on PostgreSQL: migrating, checking, backing up, restoring, compacting."""
