"""Environments in their own processes: started, called, limited, and killed here."""
