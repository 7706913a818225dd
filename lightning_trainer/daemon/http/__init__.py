"""The HTTP server below the routes: sockets, limits on peers, host names."""
