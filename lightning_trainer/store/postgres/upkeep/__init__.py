"""What is done to a whole store on PostgreSQL: copied there, checked, backed up, gone back to, compacted."""
