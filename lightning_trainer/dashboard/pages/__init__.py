"""What each page shows, as values for its template; one module per page."""
