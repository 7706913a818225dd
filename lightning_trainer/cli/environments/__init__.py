"""Commands about environments: install and try one, play many attempts, make scenarios."""
