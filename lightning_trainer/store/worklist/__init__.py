"""What steps are made of: the ended attempts that wait for one, and those that someone took out."""
