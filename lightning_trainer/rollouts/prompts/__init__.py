"""Better texts of named prompts, found by trying them on tasks."""
