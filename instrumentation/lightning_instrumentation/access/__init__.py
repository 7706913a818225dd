"""Who the daemon is: the token that opens it (``known``), and its proof that it has that token too (``proof``)."""
