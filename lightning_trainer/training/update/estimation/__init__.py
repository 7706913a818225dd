"""Credits to advantages of tokens: verl's estimators, and the schemes that ask a critic."""
