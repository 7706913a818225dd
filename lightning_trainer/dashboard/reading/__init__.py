"""Questions of the pages to a store, each on one snapshot; none of them looks through its whole history."""
