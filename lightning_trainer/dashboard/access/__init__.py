"""Who may look and act: a session after the daemon's token was given once, forms that only our pages can send."""
