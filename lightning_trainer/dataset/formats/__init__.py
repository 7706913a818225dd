"""The file formats of datasets, one a file."""
