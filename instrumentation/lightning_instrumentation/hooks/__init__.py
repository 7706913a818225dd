"""What is wrapped in other packages, when, and how it is put back."""
