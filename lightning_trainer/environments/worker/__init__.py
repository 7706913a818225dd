"""Environments in processes of their own: started, asked, limited and killed here."""
