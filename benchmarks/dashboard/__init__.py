"""The dashboard, and the run that the dashboard's tests and pictures show."""
