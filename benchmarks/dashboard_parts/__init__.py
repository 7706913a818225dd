"""Parts of ``benchmarks/dashboard.py``, and the run that the dashboard's tests and pictures show."""
