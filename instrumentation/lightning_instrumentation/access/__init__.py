"""Authentication with the daemon: the token (``known``), and the daemon's proof that it has that token (``proof``)."""
