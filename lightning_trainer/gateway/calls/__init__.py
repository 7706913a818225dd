"""One call from its beginning to its record, retries and hang-ups included."""
