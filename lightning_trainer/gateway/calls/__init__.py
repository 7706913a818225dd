"""The life of a call from request to record, including retries and hang-ups."""
