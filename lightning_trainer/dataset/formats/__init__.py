"""The file formats of datasets, one per module."""
